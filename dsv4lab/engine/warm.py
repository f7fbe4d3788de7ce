"""What a worker runs before its first request, so that no request pays for compiling."""

from __future__ import annotations

import threading
from collections.abc import Callable

import torch

from dsv4lab.backends.loops import OPS, loop_folders, loop_key
from dsv4lab.checkpoint.synthetic import random_weights
from dsv4lab.config.engine import EngineConfig
from dsv4lab.config.presets import preset
from dsv4lab.engine.loop_store import LoopStore, announce, run_once
from dsv4lab.engine.runner import Runner
from dsv4lab.errors import UnavailableError
from dsv4lab.kv.metadata import BatchItem

CHUNK = 130

_done = threading.Event()


def warm_cpu_loops(stage: Callable[[str], None] = announce) -> None:
    """Load the compiled loops of the CPU device, or compile them if this is the machine's first time.

    One process compiles while the others wait, and tells ``stage``. Raises :class:`UnavailableError` where their folder
    takes no more data.
    """
    if _done.is_set():
        return
    store, threads = loop_store(), torch.get_num_threads()
    try:
        run_once(store, _run_usual, _run_all, stage)
    except OSError as error:
        where = "the cache of compiled loops" if store is None else str(store.folder)
        raise UnavailableError(f"{where}: {error.strerror}; NUMBA_CACHE_DIR names another folder") from error
    finally:
        torch.set_num_threads(threads)  # a runner sets its own
    _done.set()


def loop_store() -> LoopStore | None:
    """The loops on disk; None if no folder for them can be written."""
    folders = loop_folders()
    return None if folders is None else LoopStore(folders, loop_key())


def _run_usual() -> None:
    """Loops are specialised by dtype and layout, not by size, so a forward of preset ``tiny`` in each mode does for any
    float32 model: tokens that complete an entry of either ratio, more entries than top-k takes, one row and several.
    """
    runner = _runner(fused=False)
    runner.forward([BatchItem(1, (1,), 0, (2,) * 127), BatchItem(2, (2,), 0, (2,) * 3)], "prefill")
    runner.forward([BatchItem(1, (1,), 127, (2,))], "decode")
    runner.forward([BatchItem(1, (1,), 128, (2,)), BatchItem(2, (2,), 3, (2,))], "decode")
    runner.close()


def _run_all() -> None:
    """Also what those forwards do not meet: fused shared experts, KV rows that are no part of a wider product (DSpark),
    top-k behind a matrix product, one row of a large expert.
    """
    _run_usual()
    runner = _runner(fused=True)
    runner.forward([BatchItem(1, (1,), 0, (2,)), BatchItem(2, (2,), 0, (2,))], "decode")
    runner.close()
    rows = torch.zeros(2, 8)
    OPS.kv_norm_rope_store(rows, torch.ones(8), torch.zeros(2, 2, 4), 1e-6, rows.clone(), torch.arange(2))
    OPS.mlp(torch.zeros(1, 64), torch.zeros(256, 64), torch.zeros(64, 128), 1.0, torch.zeros(1, 64))
    OPS.index_topk(rows, torch.tensor([8, 8]), 2, torch.zeros(2, 2, dtype=torch.int32))


def _runner(*, fused: bool) -> Runner:
    config = EngineConfig(
        "tiny",
        streams="serial",
        max_running_requests=2,
        max_total_tokens=512,
        chunked_prefill_size=CHUNK,
        shared_expert_fusion=fused,
    )
    model = preset("tiny")
    return Runner(model, random_weights(model, 0), config)
