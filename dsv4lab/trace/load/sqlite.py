"""Opening a trace that is an SQLite database, read-only and whatever it holds."""

from __future__ import annotations

import contextlib
import sqlite3
import urllib.parse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from dsv4lab.errors import TraceError
from dsv4lab.timeline.timeline import Timeline
from dsv4lab.trace.load.report import LoadReport


class Database:
    """Tables of an SQLite file by name; names from the file are quoted, values are bound.

    A table with damaged pages is read from both ends up to the damage; ``lost_rows`` are those in between.
    """

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        rows = list(connection.execute("SELECT name, type, sql FROM sqlite_master WHERE type IN ('table', 'view')"))
        self.tables = {str(name) for name, _, _ in rows}
        self._plain = {str(name) for name, kind, sql in rows if kind == "view" or "WITHOUT ROWID" in str(sql).upper()}
        self.damaged: set[str] = set()
        self.lost_rows = 0

    def columns(self, table: str) -> set[str]:
        """Column names of ``table``; empty if there is no such table."""
        if table not in self.tables:
            return set()
        return {str(row[1]) for row in self._connection.execute(f"PRAGMA table_info({quoted(table)})")}

    def read(self, table: str, columns: list[str]) -> Iterator[tuple[object, ...]]:
        """Rows of ``table``; a column that it lacks reads as ``None``."""
        have = self.columns(table)
        wanted = ", ".join(quoted(c) if c in have else "NULL" for c in columns)
        if table in self._plain:
            yield from self._connection.execute(f"SELECT {wanted} FROM {quoted(table)}")
            return
        query = f"SELECT rowid, {wanted} FROM {quoted(table)} ORDER BY rowid"
        last = 0
        try:
            for row in self._connection.execute(query):
                last = row[0]
                yield row[1:]
        except sqlite3.DatabaseError:
            self.damaged.add(table)
            yield from self._from_the_end(query, last)

    def _from_the_end(self, query: str, last: int) -> Iterator[tuple[object, ...]]:
        """The rows behind the damage that stopped a scan after row ``last``."""
        found: list[tuple[int, ...]] = []
        with contextlib.suppress(sqlite3.DatabaseError):
            for row in self._connection.execute(f"{query} DESC"):
                if row[0] <= last:
                    break
                found.append(row)
        self.lost_rows += max(found[-1][0] - last - 1 if found else 1, 0)
        yield from (row[1:] for row in reversed(found))

    def tell(self, report: LoadReport) -> None:
        """Count what could not be read."""
        report.lost_events += self.lost_rows
        report.repairs["table with damaged pages"] += len(self.damaged)


def quoted(name: str) -> str:
    """An SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


@contextmanager
def opened(path: Path) -> Iterator[Database]:
    """The database at ``path``, read-only. Raises ``TraceError`` for whatever SQLite finds wrong with it."""
    uri = f"file:{urllib.parse.quote(str(path.resolve()))}?mode=ro&immutable=1"
    connection = None
    try:
        connection = sqlite3.connect(uri, uri=True)
        connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
        yield Database(connection)
    except (sqlite3.Error, UnicodeDecodeError, OverflowError) as error:
        raise TraceError(f"{path}: damaged SQLite file: {error}") from None
    finally:
        if connection is not None:
            connection.close()


def read_sqlite(path: Path) -> tuple[Timeline, LoadReport]:
    """Load a rocpd or Nsight Systems database. Raises ``TraceError`` if it is neither."""
    from dsv4lab.trace.load.nsys import read_nsys
    from dsv4lab.trace.load.rocpd import read_rocpd

    reader: Callable[[Path, Database], tuple[Timeline, LoadReport]]
    with opened(path) as database:
        if any(name.startswith("rocpd_kernel_dispatch") for name in database.tables):
            reader = read_rocpd
        elif any(name.startswith("CUPTI_ACTIVITY_KIND_") or name == "StringIds" for name in database.tables):
            reader = read_nsys
        else:
            shown = ", ".join(sorted(database.tables)[:8]) or "none"
            raise TraceError(
                f"{path}: an SQLite file, but neither rocpd nor an Nsight Systems export (tables: {shown})"
            )
        return reader(path, database)


def whole(value: object) -> int | None:
    """``value`` if it is an integer."""
    return value if isinstance(value, int) else None
