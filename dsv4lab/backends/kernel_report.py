"""What the compiler makes of our kernels for a target: registers, LDS, spills, occupancy."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from dsv4lab.errors import UnavailableError, UsageError


@dataclass(frozen=True)
class KernelReport:
    """One compiled config; fields as in ``dsv4_kernels.compile.Compiled``."""

    fields: dict[str, Any]

    @property
    def trouble(self) -> str:
        """What is wrong with it; empty if nothing is."""
        return str(self.fields["trouble"])


def kernel_targets() -> tuple[str, ...]:
    """The archs that kernels can be compiled for."""
    from dsv4_kernels.target import TARGETS

    return tuple(TARGETS)


def kernel_names() -> tuple[str, ...]:
    """The kernels that there are."""
    from dsv4_kernels.registry import specs

    return tuple(specs())


def shared_memory_asked() -> dict[str, dict[str, int]]:
    """Percent of an SM's memory that kernels launched in this process prefer as shared memory, by kernel and bytes."""
    from dsv4_kernels.launch import carveouts

    return carveouts()


def compile_kernels(
    target: str, names: Sequence[str] = (), progress: Callable[[int, int, str], None] | None = None
) -> Iterator[KernelReport]:
    """Compile every config that ``target``'s launch tables can choose, on this machine's CPU.

    ``progress(done, total, name)`` is called after each. Raises :class:`UnavailableError` without Triton and
    :class:`UsageError` for an unknown target or kernel.
    """
    if importlib.util.find_spec("triton") is None:
        raise UnavailableError("triton is not installed, and compiling kernels takes it: pip install 'dsv4lab[triton]'")
    from dsv4_kernels.compile import compile_all, jobs
    from dsv4_kernels.registry import specs
    from dsv4_kernels.target import TARGETS

    if target not in TARGETS:
        raise UsageError(f"--target {target}: it takes one of {', '.join(TARGETS)}")
    unknown = [name for name in names if name not in specs()]
    if unknown:
        raise UsageError(f"--kernels: there is no {unknown[0]}; there are {', '.join(specs())}")
    chosen = [spec for name, spec in specs().items() if not names or name in names]
    work = [job for spec in chosen for job in jobs(spec, TARGETS[target])]
    for at, job in enumerate(work, 1):
        result = KernelReport(compile_all([job])[0].to_json())
        if progress:
            progress(at, len(work), job.name)
        yield result
