"""Pages of ended and running requests, found again by their tokens (dsv4-spec 3.9). Never imports torch.

Compressed rows alone do not continue a request: its window rows and compressor states lie in its slot. A *snapshot* of
the slot at a page boundary does, bit for bit, so a hit ends at a boundary that has one. Nodes form a tree, one page
each; a node is found by a hash chained over all pages before it, and its tokens are compared.
"""

from __future__ import annotations

import hashlib
from array import array
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from dsv4lab.errors import PoolError
from dsv4lab.kv.allocator import Allocator, Lease

Digest = Callable[[bytes, tuple[int, ...]], bytes]


class Snapshot(Protocol):
    """What a slot held at a page boundary; opaque here."""

    @property
    def nbytes(self) -> int:
        """Bytes that it takes."""
        ...


@dataclass(frozen=True, slots=True)
class Hit:
    """The first ``length`` tokens of a request are in ``pages``; ``snapshot`` restores its slot."""

    length: int
    pages: tuple[int, ...]
    snapshot: Snapshot


@dataclass(slots=True)
class CacheStats:
    """Counts since the start. ``queries`` are admissions, ``hits`` those that found something."""

    queries: int = 0
    hits: int = 0
    tokens_saved: int = 0
    evicted_pages: int = 0
    evicted_snapshots: int = 0


@dataclass(slots=True, eq=False)
class _Node:
    digest: bytes
    parent: _Node | None
    tokens: tuple[int, ...]
    page: int
    children: int = 0
    snapshot: Snapshot | None = None


def chained(parent: bytes, tokens: tuple[int, ...]) -> bytes:
    """16 bytes that depend on a page's tokens and on all pages before it."""
    return hashlib.blake2b(parent + array("q", tokens).tobytes(), digest_size=16).digest()


@dataclass(slots=True)
class PrefixCache:
    """Least recently used first out, within ``max_pages`` (None: the pool's) and ``max_bytes`` of snapshots.

    A page is used by every hit that goes through it, a snapshot by hits that end at it.

    ``save(slot, length)`` takes the snapshot of a slot whose request has ``length`` tokens in the pool, or a few more.
    """

    allocator: Allocator
    save: Callable[[int, int], Snapshot]
    max_bytes: int
    max_pages: int | None = None
    digest: Digest = chained
    stats: CacheStats = field(default_factory=CacheStats)
    _nodes: OrderedDict[bytes, _Node] = field(default_factory=OrderedDict)  # least recently used first
    _ends: OrderedDict[bytes, _Node] = field(default_factory=OrderedDict)  # those with a snapshot, in their own order
    _bytes: int = 0
    _freed: list[int] = field(default_factory=list)

    @property
    def pages(self) -> int:
        """Pages held, those of running requests included."""
        return len(self._nodes)

    @property
    def snapshots(self) -> int:
        """Snapshots held."""
        return len(self._ends)

    @property
    def snapshot_bytes(self) -> int:
        """Bytes of all snapshots."""
        return self._bytes

    def match(self, tokens: Sequence[int], most: int) -> Hit | None:
        """The longest prefix of ``tokens``, of at most ``most``, that a request can go on from."""
        path: list[_Node] = []
        best: Hit | None = None
        for node in self._path(tokens[:most]):
            path.append(node)
            if node.snapshot is not None:
                best = Hit(len(path) * self._page_size, tuple(n.page for n in path), node.snapshot)
        return best

    def count(self, tokens: Sequence[int], hit: Hit | None) -> None:
        """A request of ``tokens`` was admitted with ``hit``: now the most recently used."""
        self.stats.queries += 1
        if hit is not None:
            self.stats.hits += 1
            self.stats.tokens_saved += hit.length
            path = list(self._path(tokens[: hit.length]))
            self._touch(path)
            self._ends.move_to_end(path[-1].digest)

    def keep(self, tokens: Sequence[int], lease: Lease) -> None:
        """Keep the pages of the first ``tokens`` tokens, whole pages, of ``lease``, and a snapshot of its slot.

        Nothing is kept below pages that another request brought: a snapshot fits only the rows it was made from.
        """
        size = self._page_size
        if not tokens or len(tokens) % size:
            raise PoolError(f"request {lease.request_id}: {len(tokens)} tokens are no whole pages of {size}")
        path = list(self._path(tokens))
        if any(node.page != page for node, page in zip(path, lease.pages, strict=False)):
            return
        for place in range(len(path), len(tokens) // size):
            page_tokens = tuple(tokens[place * size : (place + 1) * size])
            node = self._insert(path[-1] if path else None, page_tokens, lease.pages[place])
            if node is None:
                return
            path.append(node)
        self._touch(path)
        if path[-1].snapshot is None:
            self._attach(path[-1], self.save(lease.slot, len(tokens)))

    def evict(self, count: int, spare: Collection[int] = ()) -> None:
        """Give up ``count`` pages that no request holds, least recently used first, but not those in ``spare``."""
        for _ in range(count):
            node = self._oldest_leaf(spare)
            if node is None:
                return
            self._remove(node)

    def take_freed(self) -> tuple[int, ...]:
        """Pages given up since the last call."""
        freed, self._freed = tuple(self._freed), []
        return freed

    def check(self) -> None:
        """Raise :class:`PoolError` if the tree and the allocator disagree."""
        pages = sorted(node.page for node in self._nodes.values())
        if tuple(pages) != self.allocator.cached_page_ids:
            raise PoolError(f"the prefix cache has pages {pages}, the allocator says {self.allocator.cached_page_ids}")
        for node in self._nodes.values():
            children = sum(other.parent is node for other in self._nodes.values())
            orphan = node.parent is not None and self._nodes.get(node.parent.digest) is not node.parent
            if children != node.children or orphan:
                raise PoolError(f"page {node.page} of the prefix cache has {children} children or no parent")
        held = [node.snapshot.nbytes for node in self._nodes.values() if node.snapshot is not None]
        if (sum(held), len(held)) != (self._bytes, len(self._ends)):
            raise PoolError(f"the prefix cache counts {self._bytes} bytes of snapshots, it has {sum(held)}")

    @property
    def _page_size(self) -> int:
        return self.allocator.geometry.page_size

    def _path(self, tokens: Sequence[int]) -> Iterator[_Node]:
        parent: _Node | None = None
        for place in range(len(tokens) // self._page_size):
            page = tuple(tokens[place * self._page_size : (place + 1) * self._page_size])
            node = self._nodes.get(self.digest(parent.digest if parent else b"", page))
            if node is None or node.parent is not parent or node.tokens != page:
                return
            yield node
            parent = node

    def _insert(self, parent: _Node | None, tokens: tuple[int, ...], page: int) -> _Node | None:
        """A new node; None if there is no room, or if its digest is another node's."""
        digest = self.digest(parent.digest if parent else b"", tokens)
        if digest in self._nodes:
            return None
        if self.max_pages is not None and len(self._nodes) >= self.max_pages:
            oldest = self._oldest_leaf(())
            if oldest is None:
                return None
            self._remove(oldest)
        self.allocator.cache(page)
        node = self._nodes[digest] = _Node(digest, parent, tokens, page)
        if parent is not None:
            parent.children += 1
        return node

    def _attach(self, node: _Node, snapshot: Snapshot) -> None:
        node.snapshot = snapshot
        self._ends[node.digest] = node
        self._bytes += snapshot.nbytes
        while self._bytes > self.max_bytes:
            oldest = next(iter(self._ends.values()))
            self._detach(oldest)
            self._prune(oldest)

    def _detach(self, node: _Node) -> None:
        if node.snapshot is not None:
            self._bytes -= node.snapshot.nbytes
            del self._ends[node.digest]
            self.stats.evicted_snapshots += 1
            node.snapshot = None

    def _prune(self, node: _Node) -> None:
        """Drop what no hit can end in or pass through any more, up from ``node``."""
        at: _Node | None = node
        while at is not None and at.snapshot is None and not at.children and self.allocator.is_idle(at.page):
            parent = at.parent
            self._remove(at)
            at = parent

    def _oldest_leaf(self, spare: Collection[int]) -> _Node | None:
        for node in self._nodes.values():
            if not node.children and node.page not in spare and self.allocator.is_idle(node.page):
                return node
        return None

    def _remove(self, node: _Node) -> None:
        self._detach(node)
        del self._nodes[node.digest]
        if node.parent is not None:
            node.parent.children -= 1
        self.allocator.uncache(node.page)
        self._freed.append(node.page)
        self.stats.evicted_pages += 1

    def _touch(self, path: list[_Node]) -> None:
        """Children before parents, so that among equals a leaf is the older one."""
        for node in reversed(path):
            self._nodes.move_to_end(node.digest)
