"""The registry walk: every kernel on its cases against its reference, one JSON line for each.

``python -m dsv4_kernels.testing.walk --device cuda`` on a GPU; with ``TRITON_INTERPRET=1`` and ``--device cpu`` the
small cases under the interpreter. Exit code 1 if any verdict is bad.
"""

from __future__ import annotations

import argparse
import json
import sys
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from dsv4_kernels.registry import Case, KernelSpec, specs
from dsv4_kernels.target import forced_target, target_of
from dsv4_kernels.testing.compare import Verdict, check
from dsv4_kernels.testing.inputs import Inputs


def walk(
    device: torch.device, names: Sequence[str] = (), *, seed: int = 0, small: bool = False, untried: bool = False
) -> Iterator[tuple[str, Verdict]]:
    """Variant and verdict of each case of each kernel (of those called ``names``) on ``device``.

    ``small``: only the cases that the interpreter can do. ``untried``: variants that never ran, too. An
    exception of a kernel is its verdict.
    """
    arch = target_of(device).arch
    for spec in specs().values():
        if names and spec.name not in names:
            continue
        wrappers = {"triton": spec.wrapper()} if small else spec.wrappers(arch, untried)
        for case in spec.cases:
            if (small and not case.small) or (not small and case.bench and not case.small):
                continue
            for variant, call in wrappers.items():
                yield variant, attempt(spec, case, device, call, seed)


def attempt(spec: KernelSpec, case: Case, device: torch.device, call: Callable[..., Any], seed: int = 0) -> Verdict:
    """:func:`check` on inputs whose seed is the case's own; what is raised becomes the verdict's trouble."""
    own = zlib.crc32(f"{spec.name}/{case.name}/{seed}".encode())
    try:
        return check(spec, case, Inputs(device, own), call)
    except Exception as error:  # noqa: BLE001 - whatever a kernel throws is its verdict
        return Verdict(spec.name, case.name, (), f"{type(error).__name__}: {' '.join(str(error).split())[-400:]}")


def main(argv: Sequence[str] | None = None) -> int:
    """Print one JSON object a line: kernel, variant, case, passes, text."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--kernels", default="", help="names, comma-separated; default: all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--target", default="", help="take the launch tables of this target (under the interpreter)")
    parser.add_argument("--untried", action="store_true", help="variants that never ran, too")
    args = parser.parse_args(argv)
    device = torch.device(args.device)
    small = device.type == "cpu"
    if small:
        from dsv4_kernels.testing import interpreter

        if not interpreter.active():
            parser.error("on the CPU kernels run under the interpreter only: set TRITON_INTERPRET=1")
        interpreter.repair()
    names = [name for name in args.kernels.split(",") if name]
    verdicts = walk(device, names, seed=args.seed, small=small, untried=args.untried)
    if not args.target:
        return _print(verdicts)
    with forced_target(args.target):
        return _print(verdicts)


def _print(verdicts: Iterator[tuple[str, Verdict]]) -> int:
    good = True
    for variant, verdict in verdicts:
        good &= verdict.passes
        line = {"kernel": verdict.kernel, "variant": variant, "case": verdict.case, "passes": verdict.passes}
        sys.stdout.write(json.dumps({**line, "text": verdict.text}) + "\n")
        sys.stdout.flush()
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
