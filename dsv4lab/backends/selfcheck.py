"""Every kernel that a device has, against the references; the aiter bindings are not covered yet."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
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


def selfcheck(device: str, names: Sequence[str] = (), seed: int = 0, *, apart: bool = False) -> Iterator[CheckRow]:
    """Check on ``device`` (``cpu`` or ``cuda``, which is also what torch calls an AMD GPU); with ``apart`` a GPU's
    kernels in a process of their own, which one that breaks the GPU's context ends alone.

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
    _check_gpu(device)
    yield from _walked(device, names, seed, {}, None) if apart else _on_gpu(device, names, seed)


def _check_gpu(device: str) -> None:
    import torch

    if not torch.cuda.is_available():
        raise UnavailableError(f"--device {device}: torch sees no GPU; it takes cpu here")


def _on_gpu(device: str, names: Sequence[str], seed: int) -> Iterator[CheckRow]:
    import torch
    from dsv4_kernels.testing.walk import walk

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
    return _walked("cpu", names, seed, {"TRITON_INTERPRET": "1"}, "triton-interpreter")


def _walked(
    device: str, names: Sequence[str], seed: int, settings: Mapping[str, str], backend: str | None
) -> Iterator[CheckRow]:
    """The walk in a process of its own; its end before its time is a bad verdict. ``backend``: None for the variant."""
    command = [sys.executable, "-m", "dsv4_kernels.testing.walk", "--device", device, "--seed", str(seed)]
    if names:
        command += ["--kernels", ",".join(names)]
    with (
        tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as said,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=said, text=True, env=child_environ(settings)) as child,
    ):
        assert child.stdout is not None
        rows = 0
        for line in child.stdout:
            found = json.loads(line)
            rows += 1
            variant = backend or found["variant"]
            yield CheckRow(variant, found["kernel"], found["case"], found["passes"], found["text"])
        code = child.wait()
        said.seek(0)
        errors = said.read()
    if code not in (0, 1) or not rows:
        last = " ".join(errors.split())[-300:]
        yield CheckRow(backend or "triton", "-", "-", False, f"ended with exit code {code}: {last}")
