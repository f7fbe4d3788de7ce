"""A model runner without a model: the next token is a function of the request's whole history, read from its pages.

Reading through slots and pages makes every mistake of the engine visible: a row of somebody else, a position that was
skipped, a slot that was not cleared. Some tokens of a prompt are orders, see below.
"""

from __future__ import annotations

import os
import sys
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dsv4lab.config.engine import EngineConfig
from dsv4lab.config.model import ModelConfig
from dsv4lab.config.presets import PRESETS
from dsv4lab.engine.step import Resume
from dsv4lab.errors import CheckpointError, PlanError, PoolError
from dsv4lab.kv.geometry import Geometry
from dsv4lab.kv.metadata import BatchItem, Mode
from dsv4lab.overlap.plan import OverlapPlan, resolve_plan
from dsv4lab.overlap.run_record import RunRecord
from dsv4lab.timeline.program import ProgramOp, StreamProgram

RAISE = 11  # the forward raises RuntimeError
REFUSE = 12  # the forward raises PoolError
EXIT = 13  # the process writes two lines and exits with code 7
GATE = 14  # every forward reads one byte from the pipe that FAKE_GATE names
GARBAGE = 15  # the process sends a frame that is no message


@dataclass(frozen=True)
class FakeSnapshot:
    tokens: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return 8 * len(self.tokens)


@dataclass
class FakePool:
    """Tokens by page and place, and by slot all tokens that its ring has seen: None where it holds nobody's."""

    rows: dict[tuple[int, int], int] = field(default_factory=dict)
    rings: dict[int, list[int] | None] = field(default_factory=dict)
    released: list[tuple[int | None, tuple[int, ...]]] = field(default_factory=list)

    def reset_slot(self, slot: int) -> None:
        self.rings[slot] = []

    def release(self, slot: int | None, pages: Sequence[int]) -> None:
        self.released.append((slot, tuple(pages)))
        if slot is not None:
            self.rings[slot] = None
        for key in [key for key in self.rows if key[0] in pages]:
            del self.rows[key]

    def check_live(self, slot: int, pages: Sequence[int], tokens: int) -> None:
        if len(pages) * 256 < tokens:
            raise PoolError(f"slot {slot} has {tokens} tokens on {len(pages)} pages")


@dataclass(frozen=True)
class FakeResult:
    logits: NDArray[np.float32]
    record: RunRecord
    selection: NDArray[np.int32] | None = None
    others: Mapping[int, RunRecord] = field(default_factory=dict)
    likeliest: None = None


class FakeRunner:
    """See the module. ``forwards`` lists (mode, tokens, items) of all that ran."""

    speculator = None

    def __init__(self, model: ModelConfig, config: EngineConfig) -> None:
        self.geometry = Geometry.plan(model, config.max_running_requests, config.max_total_tokens)
        self.pool = FakePool()
        self.forwards: list[tuple[str, int, int]] = []
        self.streams: tuple[str, int, str, int] = (config.streams, config.hw_queues, config.queue_policy, 1)
        self.watched: int | None = None
        self.closed = False
        self._vocab = model.vocab_size
        self._plan = resolve_plan("off")

    def forward(self, items: Sequence[BatchItem], mode: Mode) -> FakeResult:
        queued = time.perf_counter_ns()
        histories = [self._store(item) for item in items]
        for order in {token for item in items for token in self._prompt_head(item)}:
            _obey(order)
        self.forwards.append((mode, sum(len(i.tokens) for i in items), len(items)))
        logits = np.stack([_logits(history, self._vocab) for history in histories])
        chosen = (
            [_choice(i.start + t) for i in items for t in range(len(i.tokens))] if self.watched is not None else None
        )
        record = self._record(mode, sum(len(i.tokens) for i in items), queued)
        return FakeResult(logits, record, None if chosen is None else np.array(chosen, np.int32))

    def save_slot(self, slot: int, length: int) -> FakeSnapshot:
        ring = self.pool.rings[slot]
        assert ring is not None
        assert len(ring) >= length
        return FakeSnapshot(tuple(ring[:length]))

    def restore_slot(self, resume: Resume) -> None:
        assert self.pool.rings[resume.slot] == [], f"slot {resume.slot} was not cleared"
        assert isinstance(resume.snapshot, FakeSnapshot)
        self.pool.rings[resume.slot] = list(resume.snapshot.tokens)

    def profile_ranks(self, path: object) -> dict[int, str]:
        return {}

    def trace_with(self, tracer: object) -> None:
        self.tracer = tracer

    def set_plan(self, plan: str | Mapping[str, Any] | OverlapPlan) -> None:
        resolved = resolve_plan(plan)
        for rule in resolved.rules:
            if rule.ops == "nonsense":
                raise PlanError(f"plan {resolved.name}: no op matches 'nonsense'; the ops are work")
        self._plan = resolved

    def set_streams(self, kind: str, hw_queues: int, policy: str, intra_op_threads: int) -> None:
        self.streams = (kind, hw_queues, policy, intra_op_threads)

    def watch_selection(self, layer: int | None) -> None:
        self.watched = layer

    def device_status(self) -> None:
        return None

    def op_table(self) -> list[dict[str, Any]]:
        """As the real one's, and what the process was started with."""
        queues = os.environ.get("GPU_MAX_HW_QUEUES")
        return [{"name": "work", "layer": 0, "kind": "csa", "queues": queues, "note": os.environ.get("FAKE_NOTE")}]

    def program(self, mode: Mode, tokens: int, plan: OverlapPlan | None = None) -> StreamProgram:
        ops = (
            ProgramOp(0, "work", 0, "main", (), (), (), ("x",)),
            ProgramOp(1, "side.work", 0, "side0", (0,), (0,), ("x",), ("y",)),
        )
        return StreamProgram(ops, ("main", "side0"), (plan or self._plan).name, mode, tokens)

    def close(self) -> None:
        self.closed = True

    def _store(self, item: BatchItem) -> list[int]:
        ring = self.pool.rings.get(item.slot)
        assert ring is not None, f"slot {item.slot} was not cleared"
        assert len(ring) == item.start, f"the ring of slot {item.slot} has {len(ring)} tokens, not {item.start}"
        ring += item.tokens
        for place, token in enumerate(item.tokens, start=item.start):
            self.pool.rows[item.pages[place // 256], place % 256] = token
        history = [self.pool.rows[item.pages[p // 256], p % 256] for p in range(item.start + len(item.tokens))]
        assert history == ring, "pages and ring hold the same tokens"
        return history

    def _prompt_head(self, item: BatchItem) -> list[int]:
        return [token for token in [self.pool.rows[item.pages[0], 0]] if RAISE <= token <= GARBAGE]

    def _record(self, mode: Mode, tokens: int, queued: int) -> RunRecord:
        start = time.perf_counter_ns()
        times = [np.full(2, t, np.int64) for t in (queued, start, start, start + 1000)]
        return RunRecord(self.program(mode, tokens), {"main": 0, "side0": 1}, *times)


def _logits(history: list[int], vocab: int) -> NDArray[np.float32]:
    seed = zlib.crc32(np.asarray(history, np.int64).tobytes())
    return np.random.default_rng(seed).standard_normal(vocab, dtype=np.float32)


def _choice(position: int) -> list[int]:
    """Two entries: the first and the last that the position may see."""
    visible = (position + 1) // 4
    return [0 if visible else -1, visible - 1 if visible > 1 else -1]


def _obey(order: int) -> None:
    if order == RAISE:
        raise RuntimeError("planted failure")
    if order == REFUSE:
        raise PoolError("planted refusal")
    if order == EXIT:
        sys.stderr.write("first of the last words\nlast of the last words\n")
        sys.stderr.flush()
        os._exit(7)
    if order == GATE:
        with open(os.environ["FAKE_GATE"], "rb", buffering=0) as gate:
            gate.read(1)
    if order == GARBAGE:
        os.write(int(sys.argv[sys.argv.index("--fd") + 1]), b"\x03\x00\x00\x00abc")


def make(config: EngineConfig, stage: Callable[[str], None]) -> tuple[FakeRunner, ModelConfig]:
    """The factory that a worker is given by name."""
    stage("faking a model")
    if config.seed == 404 or "FAKE_NO_WEIGHTS" in os.environ:
        raise CheckpointError("model.safetensors: tensor embed.weight is missing")
    if config.seed == 500:
        raise ZeroDivisionError("planted bug")
    print("standard output is not the protocol")
    return FakeRunner(PRESETS["tiny"], config), PRESETS["tiny"]
