"""How many slots and pages fit into a device's memory, and what they cost (dsv4-spec 3.11, 3.12). No torch.

Slots come first: rings and compressor state of every request that may run at once. What is left becomes pages. The
bytes are those that :class:`dsv4lab.kv.pool.KvPool` takes, reserved slot, reserved page and sentinels included.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from dsv4lab.config.engine import THREE_POOL
from dsv4lab.errors import ConfigError, PoolError
from dsv4lab.kv.formats import PoolFormat
from dsv4lab.kv.geometry import MAX_ROWS, PAGE_SIZE, Geometry, ceil_div
from dsv4lab.units import bytes_text

if TYPE_CHECKING:
    from dsv4lab.config.engine import EngineConfig
    from dsv4lab.config.model import ModelConfig

DEFAULT_REQUESTS = 256
DEFAULT_FRACTION = 0.9
DEFAULT_SWA_RATIO = 0.1
SLOT_SHARE = 2  # by itself, the plan gives slots at most 1 / SLOT_SHARE of the memory


@dataclass(frozen=True, slots=True)
class MemoryWish:
    """What is asked for; None leaves a number to the plan.

    ``device_memory`` bytes are free before weights and pool, of which ``mem_fraction_static`` may be used;
    ``weight_memory`` and ``prefix_cache_bytes`` (of snapshots) are taken off that. Without ``device_memory`` nothing
    limits the plan. ``draft_layers`` of a drafter have bf16 rings of their own, whatever the format of the pool.
    """

    device_memory: int | None = None
    weight_memory: int = 0
    mem_fraction_static: float = DEFAULT_FRACTION
    max_running_requests: int | None = None
    max_total_tokens: int | None = None
    context_length: int | None = None
    page_size: int = PAGE_SIZE
    swa_full_tokens_ratio: float | None = None
    verify_tokens: int = 1
    draft_layers: int = 0
    prefix_cache_bytes: int = 0

    def __post_init__(self) -> None:
        for name in ("device_memory", "max_running_requests", "max_total_tokens", "context_length", "verify_tokens"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name} = {value}: takes an integer >= 1")
        for name in ("weight_memory", "draft_layers", "prefix_cache_bytes"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name} = {getattr(self, name)}: takes an integer >= 0")
        for name in ("mem_fraction_static", "swa_full_tokens_ratio"):
            value = getattr(self, name)
            if value is not None and not 0.0 < value <= 1.0:
                raise ConfigError(f"{name} = {value}: takes a number above 0, at most 1")


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """A pool that fits. ``available`` is what it may take, None without a limit."""

    wish: MemoryWish
    form: PoolFormat
    geometry: Geometry
    context_length: int
    available: int | None

    @property
    def draft_bytes_per_slot(self) -> int:
        """Bytes of a slot's rings in the drafter's layers."""
        return draft_ring_bytes(self.wish, self.geometry)

    @property
    def pool_bytes(self) -> int:
        """Bytes of the whole pool, and of the drafter's."""
        return self.form.pool_bytes(self.geometry) + self.geometry.slots * self.draft_bytes_per_slot

    def to_json(self) -> dict[str, Any]:
        """The documented keys; sizes in bytes."""
        g, f = self.geometry, self.form
        states = {f"state{r}_bytes_per_slot": g.state_bytes(r) if r in g.ratios else 0 for r in (4, 128)}
        return {
            "kv_layout": f.layout,
            "kv_cache_dtype": f.kv,
            "index_cache_dtype": f.index,
            "bytes_per_token": f.token_bytes(g),
            "bytes_per_page": f.page_bytes(g),
            "bytes_per_slot": f.slot_bytes(g) + self.draft_bytes_per_slot,
            "ring_bytes_per_slot": f.ring_bytes(g),
            **states,
            "draft_bytes_per_slot": self.draft_bytes_per_slot,
            "bytes_per_row": f.row_bytes,
            "bytes_per_index_key": f.index_bytes,
            "bytes_per_snapshot": f.snapshot_bytes(g) + self.draft_bytes_per_slot,
            "prefix_cache_bytes": self.wish.prefix_cache_bytes,
            "slots": g.slots,
            "max_running_requests": g.slots - 1,
            "ring_rows": g.ring_rows,
            "swa_tokens": g.swa_rows,
            "pages": g.pages,
            "page_size": g.page_size,
            "tokens": g.capacity_tokens,
            "context_length": self.context_length,
            "full_context_requests": min(g.slots - 1, (g.pages - 1) // g.pages_for(self.context_length)),
            "slots_bytes": self.pool_bytes - g.pages * f.page_bytes(g),
            "pages_bytes": g.pages * f.page_bytes(g),
            "pool_bytes": self.pool_bytes,
            "available_bytes": self.available,
            "device_memory_bytes": self.wish.device_memory,
        }


def plan_memory(config: ModelConfig, form: PoolFormat, wish: MemoryWish) -> MemoryPlan:
    """The largest pool within the memory given, or the one asked for if that is smaller.

    Raises :class:`PoolError`, saying what would fit, when what is asked for does not; :class:`ConfigError` for a
    context longer than the model's.
    """
    limit = config.max_position_embeddings
    if wish.context_length is not None and wish.context_length > limit:
        raise ConfigError(f"context_length = {wish.context_length}: {config.name} takes at most {limit} tokens")
    plan = _Planner(config, form, wish)
    return plan.unlimited() if wish.device_memory is None else plan.within(plan.available())


def plan_for_engine(config: ModelConfig, engine: EngineConfig, memory: int | None) -> MemoryPlan:
    """The pool that ``engine`` asks for, which ``memory`` bytes must hold; :class:`PoolError` says what would fit."""
    wish = MemoryWish(
        device_memory=memory,
        mem_fraction_static=1.0,
        max_running_requests=engine.max_running_requests,
        max_total_tokens=engine.max_total_tokens,
        verify_tokens=engine.verify_tokens,
        prefix_cache_bytes=engine.prefix_cache_bytes if engine.enable_prefix_cache else 0,
    )
    return plan_memory(config, PoolFormat.for_engine(config, engine), wish)


class _Planner:
    """Arithmetic on one model, form and wish."""

    def __init__(self, config: ModelConfig, form: PoolFormat, wish: MemoryWish) -> None:
        self.config, self.form, self.wish = config, form, wish
        smallest = Geometry.plan(config, 1, wish.page_size, verify_tokens=wish.verify_tokens, page_size=wish.page_size)
        self.base = form.fit(smallest)
        self.page = form.page_bytes(self.base)
        self.once = form.fixed_bytes(self.base) - 2 * form.slot_bytes(self.base)
        self.slot = form.slot_bytes(self.base) + draft_ring_bytes(wish, self.base)

    def cost(self, requests: int, pages: int) -> int:
        """Bytes with ``requests`` slots and ``pages`` pages to hand out, the reserved ones on top."""
        return self.once + (requests + 1) * self.slot + (pages + 1) * self.page

    def most_pages(self, requests: int, available: int) -> int:
        """Pages to hand out beside the slots of ``requests``; negative if not even slots and reserved page fit."""
        rest = available - self.cost(requests, 0)
        rows = MAX_ROWS - (requests + 1) * self.base.ring_rows
        most = rows // max(1, *map(self.base.entries_per_page, self.base.compress_ratios)) - 1
        return min(rest // self.page if self.page else most, most)

    def most_requests(self, pages: int, available: int) -> int:
        """Requests whose slots fit beside ``pages``."""
        return (available - self.once - (pages + 1) * self.page) // self.slot - 1

    def needed_pages(self) -> int:
        """Pages without which the wish is not met: one full context, or the tokens asked for."""
        tokens = max(self.wish.context_length or 1, self.wish.max_total_tokens or 1)
        return ceil_div(tokens, self.wish.page_size)

    def available(self) -> int:
        """Bytes that the pool may take."""
        wish = self.wish
        assert wish.device_memory is not None
        usable = int(wish.device_memory * wish.mem_fraction_static)
        if usable <= wish.weight_memory:
            raise PoolError(
                f"weights of {bytes_text(wish.weight_memory)} leave nothing of the {bytes_text(usable)} "
                f"({wish.mem_fraction_static:g} of {bytes_text(wish.device_memory)}) for the pool: "
                f"a device of {bytes_text(wish.weight_memory / wish.mem_fraction_static)} holds the weights alone"
            )
        taken = wish.weight_memory + wish.prefix_cache_bytes
        if usable <= taken:
            raise PoolError(
                f"a prefix cache of {bytes_text(wish.prefix_cache_bytes)} leaves nothing of "
                f"{bytes_text(usable - wish.weight_memory)} for the pool; it takes less than that"
            )
        return usable - taken

    def unlimited(self) -> MemoryPlan:
        """As many slots and pages as asked for, by default one request of the model's longest context."""
        wish = self.wish
        context = wish.context_length or self.config.max_position_embeddings
        tokens = wish.max_total_tokens or context
        requests = wish.max_running_requests or self._swa_limit(DEFAULT_REQUESTS, ceil_div(tokens, wish.page_size))
        return self._plan(requests, ceil_div(tokens, wish.page_size), min(context, tokens), None)

    def within(self, available: int) -> MemoryPlan:
        """The plan for a device."""
        wish, needed = self.wish, self.needed_pages()
        most = self.most_requests(needed, available)
        if most < (wish.max_running_requests or 1):
            raise self._too_much(available, needed, most)
        requests = wish.max_running_requests
        if requests is None:
            half = (available // SLOT_SHARE - self.once) // self.slot - 1
            requests = min(most, max(1, min(half, DEFAULT_REQUESTS)))
        pages = self.most_pages(requests, available)
        if pages < needed:
            raise self._too_much(available, needed, most)
        if wish.max_total_tokens is not None:
            pages = needed
        if wish.max_running_requests is None:
            requests = self._swa_limit(requests, pages)
        capacity = pages * wish.page_size
        context = wish.context_length or min(self.config.max_position_embeddings, capacity)
        return self._plan(requests, pages, context, available)

    def _too_much(self, available: int, needed: int, most: int) -> PoolError:
        wish = self.wish
        requests = wish.max_running_requests or 1
        tokens = needed * wish.page_size
        asked = f"{plural(requests)} and {tokens} tokens take {bytes_text(self.cost(requests, needed))}"
        offers = []
        if most >= 1:
            offers.append(f"{plural(most)} with {tokens} tokens")
        if (pages := self.most_pages(requests, available)) >= 1:
            offers.append(f"{plural(requests)} with {pages * wish.page_size} tokens")
        if not offers and (pages := self.most_pages(1, available)) >= 1:
            offers.append(f"1 request with {pages * wish.page_size} tokens")
        smallest = f"nothing: 1 request with one page takes {bytes_text(self.cost(1, 1))}"
        would = " or ".join(offers) or smallest
        return PoolError(f"{asked}, {bytes_text(available)} are available; what would fit: {would}")

    def _swa_limit(self, requests: int, pages: int) -> int:
        """Requests that the window pool serves, where the former layout's ratio bounds it; at least 1."""
        ratio = self.wish.swa_full_tokens_ratio
        if self.form.layout != THREE_POOL or ratio is None:
            return requests
        return max(1, min(requests, self._swa_tokens(pages, ratio) // self.base.ring_rows - 1))

    def _swa_tokens(self, pages: int, ratio: float) -> int:
        size = self.wish.page_size
        return int(pages * size * ratio) // size * size

    def _plan(self, requests: int, pages: int, context: int, available: int | None) -> MemoryPlan:
        geometry = replace(self.base, slots=requests + 1, pages=pages + 1)
        ratio = self.wish.swa_full_tokens_ratio
        if self.form.layout == THREE_POOL and ratio is not None:
            tokens, size = self._swa_tokens(pages, ratio), self.base.ring_rows
            if geometry.swa_rows > tokens:
                raise PoolError(
                    f"{plural(requests)} and the reserved slot hold {geometry.swa_rows} window tokens, "
                    f"swa_full_tokens_ratio {ratio:g} of {pages * self.wish.page_size} tokens gives {tokens}; "
                    f"what would fit: {plural(max(0, tokens // size - 1))}"
                )
        return MemoryPlan(self.wish, self.form, geometry, context, available)


def draft_ring_bytes(wish: MemoryWish, geometry: Geometry) -> int:
    """Bytes of one slot's bf16 rings in ``wish.draft_layers`` layers of sliding window."""
    rows = geometry.window + wish.verify_tokens - 1
    return wish.draft_layers * rows * geometry.head_dim * 2


def plural(requests: int) -> str:
    """``1 request``, ``2 requests``."""
    return f"{requests} request{'' if requests == 1 else 's'}"
