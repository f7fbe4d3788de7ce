"""Plain bytes of a trace file in chunks, whatever it is compressed with."""

from __future__ import annotations

import queue
import threading
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from dsv4lab.errors import TraceError
from dsv4lab.trace.load.report import LoadReport

CHUNK = 1 << 20
_COMPRESSED_READ = 1 << 18
GZIP_MAGIC = b"\x1f\x8b"
ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"


def _zlib() -> Any:
    """The isal twin of ``zlib`` where it is installed, else ``zlib``."""
    try:
        from isal import isal_zlib
    except ImportError:
        return zlib
    return isal_zlib


class Source:
    """Iterates over the plain bytes of ``path``.

    After iteration ``broken`` holds why the stream ended early (``None`` if it did not) and ``plain_bytes`` how much
    came out. Raises ``TraceError`` if the file cannot be opened.
    """

    def __init__(self, path: Path, chunk: int = CHUNK) -> None:
        self.path = path
        self.chunk = chunk
        self.broken: str | None = None
        self.plain_bytes = 0
        self.read_bytes = 0

    def __iter__(self) -> Iterator[bytes]:
        try:
            with self.path.open("rb") as file:
                magic = file.read(4)
                file.seek(0)
                if magic == ZSTD_MAGIC:
                    raise TraceError(f"{self.path}: zstd is not supported: decompress it first (zstd -d)")
                parts = self._gunzip(file) if magic[:2] == GZIP_MAGIC else self._plain(file)
                for part in parts:
                    self.plain_bytes += len(part)
                    yield part
        except OSError as error:
            raise TraceError(f"{self.path}: cannot be read: {error.strerror or error}") from None

    def _plain(self, file: Any) -> Iterator[bytes]:
        while part := file.read(self.chunk):
            self.read_bytes += len(part)
            yield part

    def _gunzip(self, file: Any) -> Iterator[bytes]:
        codec = _zlib()
        stream, pending = codec.decompressobj(wbits=31), b""
        members, held, held_bytes = 0, [], 0
        while True:
            pending = pending or file.read(_COMPRESSED_READ)
            self.read_bytes = file.tell()
            if not pending:
                self.broken = None if stream is None else "the compressed data ends early"
                break
            if stream is None:
                if pending[:2] != GZIP_MAGIC:
                    break
                stream = codec.decompressobj(wbits=31)
            try:
                part = stream.decompress(pending, self.chunk)
            except (codec.error, zlib.error) as error:
                self.broken = f"the compressed data is damaged ({error})"
                break
            held.append(part)
            held_bytes += len(part)
            pending = stream.unconsumed_tail
            if stream.eof:
                members, pending, stream = members + 1, stream.unused_data, None
            if held_bytes >= self.chunk:
                yield b"".join(held)
                held, held_bytes = [], 0
        if held_bytes:
            yield b"".join(held)


def read_ahead(source: Iterator[bytes], depth: int = 8) -> Iterator[bytes]:
    """Run ``source`` in a thread, at most ``depth`` chunks ahead, so that inflating and parsing overlap."""
    chunks: queue.Queue[bytes | BaseException | None] = queue.Queue(depth)
    stopped = threading.Event()

    def put(item: bytes | BaseException | None) -> bool:
        while not stopped.is_set():
            try:
                chunks.put(item, timeout=0.1)
            except queue.Full:
                continue
            return True
        return False

    def work() -> None:
        try:
            for chunk in source:
                if not put(chunk):
                    return
            put(None)
        except BaseException as error:  # noqa: BLE001 - handed to the reader, which raises it
            put(error)

    thread = threading.Thread(target=work, name="trace-read-ahead", daemon=True)
    thread.start()
    try:
        while (item := chunks.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            yield item
    finally:
        stopped.set()
        thread.join()


def read_whole(path: Path, report: LoadReport, progress: Callable[[int], None] | None) -> bytes:
    """All plain bytes of ``path``; how many, and why they end early if they do, goes into ``report``."""
    source = Source(path)
    parts = []
    for chunk in read_ahead(iter(source)):
        parts.append(chunk)
        if progress is not None:
            progress(source.read_bytes)
    report.plain_bytes = source.plain_bytes
    if source.broken is not None:
        report.truncated = True
        report.findings[source.broken] += 1
    return b"".join(parts)
