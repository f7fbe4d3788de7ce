"""A model on a device, and its decode steps under plans: run once, timed in turn, or only what a plan moves aside."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from dsv4lab.checkpoint.source import synthetic_weights
from dsv4lab.checkpoint.synthetic import random_weights
from dsv4lab.config.engine import EngineConfig
from dsv4lab.config.model import ModelConfig
from dsv4lab.engine.device_runs import DeviceRuns
from dsv4lab.engine.runner import Runner
from dsv4lab.engine.warm import warm_cpu_loops
from dsv4lab.errors import UnavailableError, UsageError
from dsv4lab.kv.metadata import BatchItem
from dsv4lab.model.builder import Shape
from dsv4lab.overlap.compile import CompiledProgram
from dsv4lab.overlap.device_api import DeviceApi
from dsv4lab.overlap.graphs import CapturedGraph
from dsv4lab.overlap.plan import AUTO, resolve_plan
from dsv4lab.overlap.run_record import RunRecord
from dsv4lab.timeline.program import MAIN, StreamProgram
from dsv4lab.tuning.overlap.settings import PAGE, Settings, model_of

SINGLES = 7
CPU_SHAPES = ("tiny", "demo")


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """A step that is ready to run: with a graph on a GPU, op by op on the CPU device."""

    compiled: CompiledProgram
    graph: CapturedGraph | None = None


class Stage:
    """A model with random weights, and a pool of random rows, which stand for contexts of any length.

    ``device`` is a GPU's runtime, by default torch's where ``settings`` name a GPU: steps are graphs there. Every
    request stands at the same position, the next from ``isl`` on that completes an entry of ratio 4.
    """

    def __init__(self, settings: Settings, device: DeviceApi | None = None) -> None:
        self.settings = settings
        self.on_gpu = device is not None or settings.device != "cpu"
        if not self.on_gpu and settings.shape not in CPU_SHAPES:
            raise UsageError(f"shape is {settings.shape!r}: on the CPU device it takes {' or '.join(CPU_SHAPES)}")
        self.model = model_of(settings.shape, settings.layers)
        if not self.on_gpu:
            warm_cpu_loops()
        config = engine_config(settings)
        self.runner = Runner(self.model, _weights(self.model, config), config, device=device)
        self._steps: dict[object, Step] = {}
        self._fill()

    @property
    def gpu(self) -> DeviceRuns | None:
        """The GPU's side of the runner; None on the CPU device."""
        return self.runner.gpu

    def items(self, n: int) -> list[BatchItem]:
        """One token of each of ``n`` requests."""
        at, pages = self.settings.isl | 3, self.settings.pages
        return [BatchItem(s, tuple(range(1 + (s - 1) * pages, 1 + s * pages)), at, (1 + s,)) for s in range(1, n + 1)]

    def step(self, n: int, plan: str) -> Step:
        """A step of ``n`` requests under ``plan``, with its inputs set; captured the first time on a GPU."""
        shape = self._set(n)
        key = (n, plan)
        if key not in self._steps:
            self._steps[key] = self._ready(key, self._compiled(shape, plan))
        return self._steps[key]

    def program(self, n: int, plan: str) -> StreamProgram:
        """The stream program of such a step."""
        return self._compiled(self._set(n), plan).program

    def side_step(self, n: int, plan: str) -> Step | None:
        """What ``plan`` moves off main, in program order on one stream, as a step of its own; None if it moves nothing.

        It leaves rows in the pool that no forward would; the next forward at this position replaces them.
        """
        shape = self._set(n)
        chain = side_chain(self._compiled(shape, plan))
        return None if chain is None else self._ready((n, plan, "side"), chain)

    def run(self, step: Step) -> RunRecord:
        """Run ``step`` once and wait for its end."""
        with torch.inference_mode():
            if self.gpu is None or step.graph is None:
                return self.runner.replay(step.compiled, self.runner.arena)
            return self.gpu.graphs.launch(step.graph).record()

    def eager(self, step: Step) -> None:
        """Run ``step`` without its graph."""
        self.run(Step(step.compiled))

    def runs_eagerly(self, plan: str) -> bool:
        """Whether a graph's ops can run without it: on HIP streams fork inside captures only."""
        wanted = resolve_plan(plan)
        return self.gpu is not None and self.gpu.eager_plan(wanted) == wanted

    def lacks(self, plan: str) -> str | None:
        """Why this process cannot run ``plan``, such as too few streams; None if it can."""
        if self.gpu is None:
            return None
        try:
            program = self.program(1, plan)
            for name in program.streams:
                self.gpu.streams.stream(name, high=name in program.high)
        except UnavailableError as error:
            return str(error)
        return None

    def logits(self, n: int) -> torch.Tensor:
        """What the last step of ``n`` requests computed, float32 ``[n, vocab]``, copied to the CPU."""
        return self.runner.arena.buffers["logits"][:n].to("cpu", copy=True)

    def pool(self) -> list[torch.Tensor]:
        """All tensors of the pool."""
        return [tensor for tensors in self.runner.pool.resources().values() for tensor in tensors]

    def turns_us(self, steps: Sequence[Step], rounds: int, in_a_row: int) -> list[list[float]]:
        """Microseconds ``[step][round]`` of one of ``in_a_row`` runs; the order shifts by one from round to round."""
        us: list[list[float]] = [[] for _ in steps]
        for first in range(rounds):
            for place in range(len(steps)):
                at = (first + place) % len(steps)
                us[at].append(self.time_us(steps[at], in_a_row))
        return us

    def time_us(self, step: Step, in_a_row: int) -> float:
        """Microseconds of one of ``in_a_row`` runs; on a GPU behind one more that hides the host."""
        if self.gpu is not None and step.graph is not None:
            with torch.inference_mode():
                return self.gpu.graphs.time_us(step.graph, in_a_row)
        return statistics.fmean(_wall_us(self.run(step)) for _ in range(in_a_row))

    def single_us(self, step: Step) -> float:
        """Median microseconds of one run alone, with what its launch takes on the device."""
        return statistics.median(_wall_us(self.run(step)) for _ in range(SINGLES))

    def auto(self, n: int) -> str | None:
        """What plan ``auto`` takes for ``n`` requests, measured now; None where there is no such plan."""
        if self.gpu is None or not self.runner.config.times_plans:
            return None
        shape = self._set(n)
        with torch.inference_mode():
            self.gpu.launch(shape, AUTO, lambda compiled: compiled).record()
        return list(self.gpu.choices.values())[-1].plan.name

    def forget(self) -> None:
        """Let all steps and their graphs go."""
        self._steps.clear()
        if self.gpu is not None:
            self.gpu.graphs.clear()

    def close(self) -> None:
        """End the streams' threads."""
        self.forget()
        self.runner.close()

    def _set(self, n: int) -> Shape:
        return self.runner.prepare(self.items(n), "decode")

    def _compiled(self, shape: Shape, plan: str) -> CompiledProgram:
        return self.runner.compiled(shape, resolve_plan(plan))

    def _ready(self, key: object, compiled: CompiledProgram) -> Step:
        if self.gpu is None:
            return Step(compiled)
        with torch.inference_mode():
            return Step(compiled, self.gpu.graphs.get(("overlap bench", key), compiled, self.runner.arena))

    def _fill(self) -> None:
        generator = torch.Generator(self.runner.place.device).manual_seed(1)
        for tensor in self.pool():
            if tensor.is_floating_point():
                tensor.normal_(0.0, 0.5, generator=generator)


def engine_config(settings: Settings) -> EngineConfig:
    """The engine that such a bench opens."""
    most = max(settings.concurrency)
    common: dict[str, Any] = {
        "max_running_requests": most,
        "max_total_tokens": most * settings.pages * PAGE,
        "chunked_prefill_size": 512,
    }
    name = settings.shape.partition("-")[0]
    if settings.device == "cpu":
        return EngineConfig(name, **common)
    return EngineConfig(
        name,
        device=settings.device,
        dtype="bfloat16",
        weights="stored",
        kv_cache_dtype=settings.kv,
        index_cache_dtype=settings.kv,
        graph_buckets=tuple(sorted({*settings.concurrency, 2, 4})),
        max_graphs=256,
        **common,
    )


def side_chain(compiled: CompiledProgram) -> CompiledProgram | None:
    """The ops of ``compiled`` that are not on main, in their order, on main alone; None if there are none."""
    program = compiled.program
    picked = [op.index for op in program.ops if op.stream != MAIN]
    if not picked:
        return None
    ops = tuple(
        replace(program.ops[at], index=n, stream=MAIN, waits=(), deps=(n - 1,) if n else ())
        for n, at in enumerate(picked)
    )
    alone = replace(program, ops=ops, streams=(MAIN,), plan=f"{program.plan}, side ops alone")
    return CompiledProgram(alone, tuple(compiled.run[at] for at in picked))


def same(left: Sequence[torch.Tensor], right: Sequence[torch.Tensor]) -> bool:
    """Equal bytes."""
    return all(
        torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))
        for a, b in zip(left, right, strict=True)
    )


def _weights(model: ModelConfig, config: EngineConfig) -> Any:
    if config.weights == "dense":
        return random_weights(model, 0)
    return synthetic_weights(model, 0, torch.bfloat16, config.device.replace("hip", "cuda"))


def _wall_us(record: RunRecord) -> float:
    return float(record.end_ns.max() - record.start_ns.min()) / 1e3


Tell = Callable[[str], None]
"""Takes a line about what goes on."""
