"""Recording forwards with torch's profiler (Kineto). This is the one module of the package that imports torch."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, record_function

from dsv4lab.errors import UnavailableError
from dsv4lab.timeline.program import ProgramOp, StreamProgram
from dsv4lab.timeline.timeline import UNKNOWN
from dsv4lab.trace.marks import SETUP, CapturedRun, learn_mark, op_mark, run_mark


class TorchCapture:
    """One recording; see :class:`dsv4lab.overlap.tracer.Tracer`. ``device`` records a GPU's rows beside the host's.

    All threads of the process are recorded where there is no GPU: the CPU device's queues are threads.
    """

    def __init__(self, *, device: bool) -> None:
        self._device = device
        self._programs: list[StreamProgram] = []
        self._place: dict[int, int] = {}
        self._learnt: set[int] = set()
        self._runs: list[CapturedRun] = []
        self._profile: Any = None

    def start(self) -> None:
        """Record from now on. Raises :class:`UnavailableError` if this torch cannot."""
        kinds = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if self._device else [])]
        supported: Any = torch.profiler.supported_activities  # torch does not annotate it
        missing = [kind.name for kind in kinds if kind not in supported()]
        if missing:
            raise UnavailableError(f"this torch {torch.__version__} profiles no {', '.join(missing)} activities")
        self._profile = torch.profiler.profile(activities=kinds, experimental_config=self._threads(), acc_events=True)
        self._profile.start()

    def stop(self) -> None:
        """Record no longer."""
        self._profile.stop()

    def export(self, path: Path) -> None:
        """Write what was recorded as torch writes it."""
        self._profile.export_chrome_trace(str(path))
        self._profile = None

    @property
    def platform(self) -> str:
        """``cuda``, ``rocm`` or ``cpu``."""
        if not self._device:
            return "cpu"
        return "rocm" if torch.version.hip else "cuda"

    @property
    def programs(self) -> tuple[StreamProgram, ...]:
        """The programs that ran, by the position that :attr:`runs` refer to."""
        return tuple(self._programs)

    @property
    def runs(self) -> tuple[CapturedRun, ...]:
        """All runs, in order."""
        return tuple(self._runs)

    def belongs_to(self, step: int) -> None:
        """All runs since the last call were part of ``step``."""
        for at in reversed(range(len(self._runs))):
            if self._runs[at].step != UNKNOWN:
                return
            self._runs[at] = replace(self._runs[at], step=step)

    def op(self, op: ProgramOp) -> AbstractContextManager[object]:
        """See :meth:`Tracer.op`."""
        return record_function(op_mark(op))

    def run(self, program: StreamProgram, *, graph: bool) -> AbstractContextManager[object]:
        """See :meth:`Tracer.run`."""
        self._runs.append(CapturedRun(self._at(program), graph))
        text = f"{program.mode}[tok={program.tokens}] plan {program.plan}, {'graph' if graph else 'eager'}"
        return record_function(run_mark(len(self._runs) - 1, text))

    def setup(self) -> AbstractContextManager[object]:
        """See :meth:`Tracer.setup`."""
        return record_function(SETUP)

    def learn(self, program: StreamProgram) -> AbstractContextManager[object]:
        """See :meth:`Tracer.learn`."""
        self._learnt.add(self._at(program))
        return record_function(learn_mark(self._at(program)))

    def knows(self, program: StreamProgram) -> bool:
        """See :meth:`Tracer.knows`."""
        return self._place.get(id(program)) in self._learnt

    def _at(self, program: StreamProgram) -> int:
        found = self._place.get(id(program))
        if found is None:
            found = self._place[id(program)] = len(self._programs)
            self._programs.append(program)  # so that no other one gets its id
        return found

    def _threads(self) -> Any:
        if self._device:
            return None
        from torch._C._profiler import _ExperimentalConfig

        return _ExperimentalConfig(profile_all_threads=True)
