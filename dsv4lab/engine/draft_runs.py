"""Drafters on the engine's streams: on a GPU as graphs by batch bucket and plan, beside those of the model."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from dsv4lab.errors import EngineError
from dsv4lab.overlap.plan import OverlapPlan
from dsv4lab.spec.forwards import DraftRuns, DraftShape

if TYPE_CHECKING:
    from dsv4lab.engine.device_runs import DeviceRuns
    from dsv4lab.engine.runner import Runner
    from dsv4lab.overlap.arena import Arena
    from dsv4lab.overlap.compile import CompiledProgram


def draft_runs(runner: Runner) -> DraftRuns:
    """How a drafter beside ``runner`` runs."""
    return StreamDrafts(runner) if runner.gpu is None else GraphDrafts(runner, runner.gpu)


class StreamDrafts:
    """See :class:`DraftRuns`: on the CPU device's streams, as they are at each run."""

    on_device = False

    def __init__(self, runner: Runner) -> None:
        self._runner = runner

    def bucket(self, requests: int) -> int | None:
        """None: the CPU device has no graphs."""
        return None

    def run(self, compiled: CompiledProgram, arena: Arena, *, prefill: bool) -> None:
        """See :meth:`DraftRuns.run`."""
        self._runner.replay(compiled, arena)

    def replay(
        self, of: DraftShape, tokens: int, compiled: Callable[[OverlapPlan], CompiledProgram], arena: Arena
    ) -> None:
        """See :meth:`DraftRuns.replay`; without buckets nobody asks for it."""
        raise EngineError(f"drafter's {of.kind} of {of.requests} requests: the CPU device has no graphs")


class GraphDrafts:
    """See :class:`DraftRuns`: graphs in the model's cache, under the model's plan; eager runs are on ``main``."""

    on_device = True

    def __init__(self, runner: Runner, gpu: DeviceRuns) -> None:
        self._runner = runner
        self._gpu = gpu

    def bucket(self, requests: int) -> int | None:
        """See :meth:`DraftRuns.bucket`: the model's buckets."""
        return self._gpu.bucket(requests)

    def run(self, compiled: CompiledProgram, arena: Arena, *, prefill: bool) -> None:
        """See :meth:`DraftRuns.run`."""
        self._gpu.drafts.eager += not prefill
        self._gpu.streams.launch(compiled, arena)

    def replay(
        self, of: DraftShape, tokens: int, compiled: Callable[[OverlapPlan], CompiledProgram], arena: Arena
    ) -> None:
        """See :meth:`DraftRuns.replay`."""
        graphs, drafts = self._gpu.graphs, self._gpu.drafts
        captures = graphs.captures
        try:
            self._gpu.replay(of, tokens, compiled, arena, self._runner.plan)
        except EngineError as error:
            raise EngineError(f"drafter's {of.kind}, bucket of {of.requests}: {error}") from error
        finally:
            drafts.captures += graphs.captures - captures
        drafts.replays += 1
