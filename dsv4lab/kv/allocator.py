"""Who owns which slot and which pages: host bookkeeping, no tensors (dsv4-spec 3.3, 13.4).

A slot has one owner. A page has one too, unless the prefix cache holds it: then any number of requests may read it, and
none writes it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from heapq import heappop, heappush

from dsv4lab.errors import PoolError
from dsv4lab.kv.geometry import Geometry


@dataclass(slots=True, eq=False)
class Lease:
    """What one request holds. ``pages`` are in order of position; ``tokens`` is how many tokens were asked for."""

    request_id: int
    slot: int
    pages: tuple[int, ...]
    tokens: int


@dataclass(frozen=True, slots=True)
class Freed:
    """What lost its last owner: pages, and a slot unless it is None."""

    slot: int | None
    pages: tuple[int, ...]


class Allocator:
    """Hands out slots and pages, lowest number first; slot 0 and page 0 never.

    A call either does all it was asked or raises :class:`PoolError` and changes nothing. Not thread-safe: the engine
    loop is its only caller.
    """

    def __init__(self, geometry: Geometry) -> None:
        self.geometry = geometry
        self._pages = list(range(1, geometry.pages))
        self._slots = list(range(1, geometry.slots))
        self._leases: dict[int, Lease] = {}
        self._readers: dict[int, int] = {}  # leases of a page, of all pages in leases
        self._cached: set[int] = set()
        self._idle: set[int] = set()  # cached pages in no lease

    @property
    def free_pages(self) -> int:
        """Pages without an owner."""
        return len(self._pages)

    @property
    def free_slots(self) -> int:
        """Slots without an owner."""
        return len(self._slots)

    @property
    def free_page_ids(self) -> tuple[int, ...]:
        """Pages without an owner, ascending."""
        return tuple(sorted(self._pages))

    @property
    def free_slot_ids(self) -> tuple[int, ...]:
        """Slots without an owner, ascending."""
        return tuple(sorted(self._slots))

    @property
    def leases(self) -> tuple[Lease, ...]:
        """All leases, oldest first."""
        return tuple(self._leases.values())

    @property
    def cached_page_ids(self) -> tuple[int, ...]:
        """Pages that the prefix cache holds, ascending; requests may hold them too."""
        return tuple(sorted(self._cached))

    @property
    def idle_pages(self) -> int:
        """Pages that the prefix cache alone holds."""
        return len(self._idle)

    def is_idle(self, page: int) -> bool:
        """Whether the prefix cache alone holds ``page``."""
        return page in self._idle

    def can_admit(self, tokens: int) -> bool:
        """Whether a new request of ``tokens`` tokens fits now."""
        return bool(self._slots) and tokens >= 1 and self.geometry.pages_for(tokens) <= len(self._pages)

    def can_grow(self, lease: Lease, tokens: int) -> bool:
        """Whether ``lease`` can be grown to ``tokens`` tokens now."""
        return self.geometry.pages_for(tokens) - len(lease.pages) <= len(self._pages)

    def admit(self, request_id: int, tokens: int, shared: tuple[int, ...] = ()) -> Lease:
        """Give a new request a slot and the pages for its first ``tokens`` tokens.

        ``shared`` are pages of the prefix cache that hold its first tokens already.
        """
        if request_id in self._leases:
            raise PoolError(f"request {request_id} already holds slot {self._leases[request_id].slot}")
        if tokens < 1:
            raise PoolError(f"request {request_id} asks for {tokens} tokens: takes at least 1")
        if not self._slots:
            raise PoolError(f"request {request_id} finds all {self.geometry.slots - 1} slots taken: release one first")
        if foreign := [page for page in shared if page not in self._cached]:
            raise PoolError(f"request {request_id} cannot share page {foreign[0]}: the prefix cache does not hold it")
        missing = self.geometry.pages_for(tokens) - len(shared)
        if missing < 0:
            raise PoolError(f"request {request_id} asks for {tokens} tokens: {len(shared)} shared pages hold more")
        pages = shared + self._take(request_id, missing, len(shared), tokens)
        lease = Lease(request_id, heappop(self._slots), pages, tokens)
        self._leases[request_id] = lease
        self._add_reader(pages)
        return lease

    def grow(self, lease: Lease, tokens: int) -> Lease:
        """Make room for ``tokens`` tokens in all; returns ``lease``, changed in place. Never takes pages away."""
        self._check_owned(lease)
        missing = self.geometry.pages_for(tokens) - len(lease.pages)
        if missing > 0:
            pages = self._take(lease.request_id, missing, len(lease.pages), tokens)
            self._add_reader(pages)
            lease.pages += pages
        lease.tokens = max(lease.tokens, tokens)
        return lease

    def release(self, lease: Lease) -> Freed:
        """Take back all that ``lease`` holds; tells what has no other owner."""
        self._check_owned(lease)
        del self._leases[lease.request_id]
        heappush(self._slots, lease.slot)
        freed = []
        for page in lease.pages:
            self._readers[page] -= 1
            if not self._readers[page]:
                del self._readers[page]
                if page in self._cached:
                    self._idle.add(page)
                else:
                    heappush(self._pages, page)
                    freed.append(page)
        return Freed(lease.slot, tuple(freed))

    def cache(self, page: int) -> None:
        """The prefix cache holds ``page`` of some lease from now on."""
        if page not in self._readers or page in self._cached:
            raise PoolError(f"page {page} cannot be cached: {'cached already' if page in self._cached else 'unowned'}")
        self._cached.add(page)

    def uncache(self, page: int) -> None:
        """The prefix cache gives up ``page``, which no request holds."""
        if page not in self._idle:
            raise PoolError(f"page {page} is not the prefix cache's alone")
        self._cached.remove(page)
        self._idle.remove(page)
        heappush(self._pages, page)

    def check(self) -> None:
        """Raise :class:`PoolError` unless pages and slots have the owners they may have and every lease room enough."""
        leases = self._leases.values()
        owned = {f"request {x.request_id}": x.pages for x in leases}
        _check_owners("page", range(1, self.geometry.pages), self._pages, owned, self._cached)
        owned = {f"request {x.request_id}": (x.slot,) for x in leases}
        _check_owners("slot", range(1, self.geometry.slots), self._slots, owned, set())
        for request_id, lease in self._leases.items():
            if lease.request_id != request_id:
                raise PoolError(f"request {request_id} is filed with the lease of request {lease.request_id}")
            if (need := self.geometry.pages_for(lease.tokens)) > len(lease.pages):
                raise PoolError(f"request {request_id} has {len(lease.pages)} pages; {lease.tokens} tokens take {need}")
        readers = Counter(page for lease in leases for page in lease.pages)
        if readers != self._readers or self._idle != self._cached - readers.keys():
            raise PoolError(f"pages are counted as read {self._readers}, leases hold them {dict(readers)}")

    def _add_reader(self, pages: tuple[int, ...]) -> None:
        for page in pages:
            self._readers[page] = self._readers.get(page, 0) + 1
            self._idle.discard(page)

    def _take(self, request_id: int, count: int, held: int, tokens: int) -> tuple[int, ...]:
        free, size = len(self._pages), self.geometry.page_size
        if tokens > self.geometry.capacity_tokens:
            raise PoolError(
                f"request {request_id} needs {tokens} tokens; the whole pool holds {self.geometry.capacity_tokens}: "
                "shorten it or open a larger pool"
            )
        if count > free:
            raise PoolError(
                f"request {request_id} needs {count} more pages for {tokens} tokens but {free} are free: "
                f"at most {(held + free) * size} tokens of it fit now"
            )
        return tuple(heappop(self._pages) for _ in range(count))

    def _check_owned(self, lease: Lease) -> None:
        if self._leases.get(lease.request_id) is not lease:
            raise PoolError(f"request {lease.request_id} holds no such lease of slot {lease.slot}: already released?")


def _check_owners(
    what: str, all_ids: range, free: list[int], owned: dict[str, tuple[int, ...]], cached: set[int]
) -> None:
    owners: dict[int, list[str]] = {}
    for owner, ids in [("free", free), *owned.items()]:
        for number in ids:
            owners.setdefault(number, []).append(owner)
    for number in cached:
        names = owners.setdefault(number, [])
        if "free" in names or len(set(names)) < len(names):
            raise PoolError(f"{what} {number} of the prefix cache has the owners: {', '.join(names)}")
    for number, names in sorted(owners.items()):
        if number not in all_ids:
            raise PoolError(f"{what} {number} cannot be handed out, but is held by: {', '.join(names)}")
        if len(names) > 1 and number not in cached:
            raise PoolError(f"{what} {number} has {len(names)} owners: {', '.join(names)}")
    if lost := [n for n in all_ids if n not in owners]:
        raise PoolError(f"{what} {lost[0]} has no owner and is not free ({len(lost)} lost in all)")
