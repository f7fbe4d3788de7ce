"""Every kernel that a device has, against the references; the aiter bindings are not covered yet."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from dsv4lab.env import child_environ
from dsv4lab.errors import UnavailableError, UsageError


@dataclass(frozen=True)
class CheckRow:
    """The verdict on one case: ``backend`` is torch, triton, triton-interpreter or a Hopper sibling."""

    backend: str
    kernel: str
    case: str
    passes: bool
    text: str

    def to_json(self) -> dict[str, Any]:
        """The fields by name."""
        return asdict(self)


def selfcheck(device: str, names: Sequence[str] = (), seed: int = 0) -> Iterator[CheckRow]:
    """Check on ``device`` (``cpu`` or ``cuda``, which is also what torch calls an AMD GPU).

    On a GPU: Triton kernels, then aiter where it is importable. On the CPU: the references themselves against their
    float64 truth, then the kernels under Triton's interpreter where Triton is installed.
    Raises :class:`UnavailableError` without such a device, :class:`UsageError` for an unknown kernel.
    """
    from dsv4_kernels.registry import specs

    unknown = [name for name in names if name not in specs()]
    if unknown:
        raise UsageError(f"--kernels: there is no {unknown[0]}; there are {', '.join(specs())}")
    if device == "cpu":
        yield from _references(names, seed)
        if importlib.util.find_spec("triton") is not None:
            yield from _interpreted(names, seed)
        return
    yield from _on_gpu(device, names, seed)


def _on_gpu(device: str, names: Sequence[str], seed: int) -> Iterator[CheckRow]:
    import torch
    from dsv4_kernels.testing.walk import walk

    if not torch.cuda.is_available():
        raise UnavailableError(f"--device {device}: torch sees no GPU; it takes cpu here")
    for variant, verdict in walk(torch.device(device), names, seed=seed):
        yield CheckRow(variant, verdict.kernel, verdict.case, verdict.passes, verdict.text)


def _references(names: Sequence[str], seed: int) -> Iterator[CheckRow]:
    import torch
    from dsv4_kernels.registry import specs
    from dsv4_kernels.testing.walk import attempt

    for spec in specs().values():
        for case in spec.cases:
            if case.small and (not names or spec.name in names):
                verdict = attempt(spec, case, torch.device("cpu"), spec.reference, seed)
                yield CheckRow("torch", verdict.kernel, verdict.case, verdict.passes, verdict.text)


def _interpreted(names: Sequence[str], seed: int) -> Iterator[CheckRow]:
    """In a process of its own: whether kernels are interpreted is decided when Triton is imported."""
    command = [sys.executable, "-m", "dsv4_kernels.testing.walk", "--device", "cpu", "--seed", str(seed)]
    if names:
        command += ["--kernels", ",".join(names)]
    environ = child_environ({"TRITON_INTERPRET": "1"})
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environ) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        rows = 0
        for line in child.stdout:
            found = json.loads(line)
            rows += 1
            yield CheckRow("triton-interpreter", found["kernel"], found["case"], found["passes"], found["text"])
        errors = child.stderr.read()
    if child.returncode not in (0, 1) or not rows:
        last = " ".join(errors.split())[-300:]
        yield CheckRow("triton-interpreter", "-", "-", False, f"ended with exit code {child.returncode}: {last}")
