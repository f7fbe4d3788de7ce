"""Names of the ranges that a capture puts into a trace, and what it knows of each run beside them."""

from __future__ import annotations

import re
from dataclasses import dataclass

from dsv4lab.timeline.program import ProgramOp
from dsv4lab.timeline.timeline import UNKNOWN

SETUP = "dsv4lab setup"
_RUN = "dsv4lab run "
_LEARN = "dsv4lab learn "
_OP = re.compile(r"^\S+ \[\w+\] #(\d+)$")


@dataclass(frozen=True, slots=True)
class CapturedRun:
    """One run in a capture: its program's position, whether a graph was replayed, and the step that it was part of."""

    program: int
    graph: bool
    step: int = UNKNOWN


def op_mark(op: ProgramOp) -> str:
    """Layer, op, stream and issue number, such as ``L2.attention [main] #52``."""
    return f"{op.label} [{op.stream}] #{op.index}"


def run_mark(number: int, text: str) -> str:
    """The range of run ``number``; ``text`` is for people."""
    return f"{_RUN}{number} {text}"


def learn_mark(program: int) -> str:
    """The range of the eager run that tells the kernels of the program at this position."""
    return f"{_LEARN}{program}"


def op_index(name: str) -> int | None:
    """The issue number in a range's name; None if it is no op's."""
    found = _OP.match(name)
    return int(found.group(1)) if found else None


def run_number(name: str) -> int | None:
    """The number in a range's name; None if it is no run's."""
    return _number(name, _RUN)


def learnt_program(name: str) -> int | None:
    """The program's position in a range's name; None if nothing was learnt in it."""
    return _number(name, _LEARN)


def _number(name: str, start: str) -> int | None:
    head = name.removeprefix(start).partition(" ")[0]
    return int(head) if name.startswith(start) and head.isdecimal() else None
