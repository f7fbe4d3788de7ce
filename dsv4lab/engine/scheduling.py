"""The scheduler that an engine configuration asks for, with its prefix cache."""

from __future__ import annotations

from typing import Any

from dsv4lab.config.engine import EngineConfig
from dsv4lab.config.model import ModelConfig
from dsv4lab.engine.protocol import ModelRunner
from dsv4lab.engine.scheduler import Scheduler
from dsv4lab.errors import ConfigError
from dsv4lab.kv.allocator import Allocator
from dsv4lab.kv.formats import PoolFormat
from dsv4lab.kv.geometry import Geometry
from dsv4lab.kv.prefix_cache import PrefixCache
from dsv4lab.units import bytes_text

MODEL_BYTES = {"float32": 4, "bfloat16": 2}


def make_scheduler(config: EngineConfig, model: ModelConfig, runner: ModelRunner, lookahead: int) -> Scheduler:
    """Raises :class:`ConfigError` for a prefix cache that cannot hold one snapshot."""
    allocator = Allocator(runner.geometry)
    return Scheduler(
        allocator,
        config.chunked_prefill_size,
        lookahead,
        mixed=config.enable_mixed_chunk,
        reserve_full=config.reserves_full,
        whole_chunks=config.batch_invariant,
        cache=_cache(config, model, runner, allocator) if config.enable_prefix_cache else None,
    )


def snapshot_bytes(config: EngineConfig, model: ModelConfig, geometry: Geometry) -> int:
    """Bytes of one snapshot in this engine: the model's part, and rings and input of the drafter."""
    target = PoolFormat.for_engine(model, config).snapshot_bytes(geometry)
    size = MODEL_BYTES[config.dtype]
    if config.speculative == "mtp":
        rings = model.mtp_layers * geometry.ring_rows * geometry.head_dim
        return target + size * (rings + model.hc_mult * model.hidden_size)
    if config.speculative == "dspark" and model.dspark is not None:
        rings = model.dspark.stages * geometry.ring_rows * geometry.head_dim
        return target + size * (rings + len(model.dspark.target_layer_ids) * model.hidden_size)
    return target


def cache_status(cache: PrefixCache) -> dict[str, Any]:
    """What ``status()`` tells of the prefix cache."""
    stats = cache.stats
    return {
        "pages": cache.pages,
        "snapshots": cache.snapshots,
        "snapshot_bytes": cache.snapshot_bytes,
        "queries": stats.queries,
        "hits": stats.hits,
        "tokens_saved": stats.tokens_saved,
        "evicted_pages": stats.evicted_pages,
        "evicted_snapshots": stats.evicted_snapshots,
    }


def _cache(config: EngineConfig, model: ModelConfig, runner: ModelRunner, allocator: Allocator) -> PrefixCache:
    least = snapshot_bytes(config, model, runner.geometry)
    if config.prefix_cache_bytes < least:
        raise ConfigError(
            f"prefix_cache_bytes = {config.prefix_cache_bytes}: one snapshot of this engine takes {least} "
            f"({bytes_text(least)})"
        )
    return PrefixCache(allocator, runner.save_slot, config.prefix_cache_bytes, config.prefix_cache_pages)
