"""The least that a decode step has to move: its weights and its contexts, read once, at the rate of a plain copy."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

import torch

from dsv4lab.kv.pool import index_k, ring, rows
from dsv4lab.predict.layer_ops import experts_hit
from dsv4lab.tuning.overlap.record import Bytes
from dsv4lab.tuning.overlap.stage import Stage

COPY_BYTES = 1 << 30
COPIES, COPY_ROUNDS = 20, 5


def step_bytes(stage: Stage, n: int) -> Bytes:
    """What a step of ``n`` requests reads at least. Of tables that are looked up it counts nothing, of the routed
    experts those that uniform routing is expected to hit; compressor state and activations are left out.
    """
    weights = stage.runner.weights
    total = _memory(weights) - weights.embed.nbytes
    hit = experts_hit(stage.model, n) / stage.model.n_routed_experts
    for layer in weights.layers:
        if layer.moe.table is not None:
            total -= layer.moe.table.nbytes
        total -= round((1.0 - hit) * (layer.moe.w13.nbytes + layer.moe.w2.nbytes))
    return Bytes(total, n * _context_bytes(stage))


def _context_bytes(stage: Stage) -> int:
    """Of one request: the rings, the compressed rows that attention reads, and the index keys that are scored."""
    g, isl, found = stage.runner.geometry, stage.settings.isl, stage.runner.pool.resources()
    size = {name: sum(t.nbytes for t in tensors) for name, tensors in found.items()}
    total = 0.0
    for layer, ratio in enumerate(g.compress_ratios):
        total += size[ring(layer)] / g.slots
        if not ratio:
            continue
        entries = isl // ratio
        read = min(stage.model.index_topk, entries) if ratio == 4 else entries
        total += read * size[rows(layer)] / g.compressed_slots(ratio)
        if ratio == 4:
            total += entries * size[index_k(layer)] / g.compressed_slots(ratio)
    return round(total)


def copy_rate() -> float:
    """Bytes per microsecond of the current GPU that a kernel which copies reads and writes, the best of a few."""
    source = torch.ones(COPY_BYTES // 2, dtype=torch.bfloat16, device="cuda")
    target = torch.empty_like(source)
    cuda: Any = torch.cuda
    times = []
    for _ in range(COPY_ROUNDS + 1):
        begin, end = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
        begin.record()
        for _ in range(COPIES):
            torch.mul(source, 1, out=target)
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1e3 / COPIES)
    del source, target
    cuda.empty_cache()
    return float(2 * COPY_BYTES / statistics.median(times[1:]))


def _memory(value: object) -> int:
    """Bytes of all tensors in ``value``; what several of them share counts once."""
    spans = sorted((t.data_ptr(), t.data_ptr() + t.nbytes) for t in _tensors(value))
    total, reached = 0, 0
    for begin, end in spans:
        total += max(0, end - max(begin, reached))
        reached = max(reached, end)
    return total


def _tensors(value: object) -> Iterator[torch.Tensor]:
    """All tensors of nested dataclasses and tuples."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, tuple | list):
        for part in value:
            yield from _tensors(part)
    elif is_dataclass(value):
        for field in fields(value):
            yield from _tensors(getattr(value, field.name))
