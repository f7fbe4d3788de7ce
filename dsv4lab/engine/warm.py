"""What a worker runs before its first request, so that no request pays for compiling."""

from __future__ import annotations

from functools import cache

import torch

from dsv4lab.checkpoint.synthetic import random_weights
from dsv4lab.config.engine import EngineConfig
from dsv4lab.config.presets import preset
from dsv4lab.engine.runner import Runner
from dsv4lab.kv.metadata import BatchItem

CHUNK = 130


@cache
def warm_cpu_loops() -> None:
    """Load the compiled loops of the CPU device, or compile them if this is the machine's first time.

    They are specialised by dtype and layout, not by size, so a forward of preset ``tiny`` in each mode does for any
    float32 model: tokens that complete an entry of either ratio, more entries than top-k takes, one row and several.
    """
    threads = torch.get_num_threads()
    model = preset("tiny")
    config = EngineConfig(
        "tiny", streams="serial", max_running_requests=2, max_total_tokens=512, chunked_prefill_size=CHUNK
    )
    runner = Runner(model, random_weights(model, 0), config)
    runner.forward([BatchItem(1, (1,), 0, (2,) * 127), BatchItem(2, (2,), 0, (2,) * 3)], "prefill")
    runner.forward([BatchItem(1, (1,), 127, (2,))], "decode")
    runner.forward([BatchItem(1, (1,), 128, (2,)), BatchItem(2, (2,), 3, (2,))], "decode")
    runner.close()
    torch.set_num_threads(threads)
