"""Within `batch_invariant` a row's bits are the row's own: by what is launched, for every target, and under the
interpreter by what is computed. `test_device_invariance.py` computes on a GPU."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from dsv4_kernels.invariant import COUNTS_AS, batch_invariant, counted
from dsv4_kernels.launch import recorded
from dsv4_kernels.registry import Arguments, KernelSpec, specs
from dsv4_kernels.target import TARGETS, forced_target
from dsv4_kernels.testing.batches import ROWS, row_count, smallest, take
from dsv4_kernels.testing.inputs import Inputs

from dsv4lab.env import child_environ

pytest.importorskip("triton", reason="triton is not installed")

SIZES = (1, 2, 3, 8, 16, 17, 40, 64, 65, 300)


@pytest.mark.slow
def test_a_model_on_interpreted_kernels_has_the_same_bits_in_any_batch(repo_root: Path) -> None:
    environ = child_environ({"TRITON_INTERPRET": "1", "PYTHONPATH": f"{repo_root}:{repo_root / 'kernels'}"})
    script = repo_root / "tests/cpu/interpreted_invariance.py"
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, env=environ, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"prefill": True, "decode": True, "verify": True}


def test_every_kernel_says_what_its_rows_are() -> None:
    assert set(specs()) - set(ROWS) == {"index_streams"}


def on_meta(arguments: Arguments, kept: Sequence[str] = ()) -> Arguments:
    return {n: v.to("meta") if isinstance(v, torch.Tensor) and n not in kept else v for n, v in arguments.items()}


@cache
def arguments_of(name: str) -> list[Arguments]:
    """Of the kernel's smallest case and of released shapes; only lists, which are cut by value, have values."""
    spec, lists = specs()[name], ROWS[name].lists
    kept = [*lists, *(n for names in lists.values() for n in names)]
    cases = [smallest(spec), *(c for c in spec.cases if c.compiled and not (c.small and ROWS[name].cases))]
    device = torch.device("cpu" if kept else "meta")
    return [on_meta(case.build(Inputs(device, 0)), kept) for case in cases]


def launches(spec: KernelSpec, arguments: Arguments, rows: int) -> list[Any]:
    """What a batch of ``rows`` launches: kernels with everything that shapes the sums of a row."""
    n = row_count(spec, arguments)
    batch = on_meta(take(spec, arguments, [i % n for i in range(rows)]))
    with recorded() as found:
        spec.wrapper()(**batch)
    return [
        (each.kernel.fn.__name__, dict(each.constants), each.config, each.arguments.get("splits")) for each in found
    ]


def differing(arch: str, sizes: Sequence[int], *, invariant: bool) -> set[str]:
    """Kernels whose launches are not those of one row for every size."""
    found = set()
    with forced_target(arch), batch_invariant() if invariant else nullcontext():
        for name in ROWS:
            spec = specs()[name]
            for arguments in arguments_of(name):
                one = launches(spec, arguments, 1)
                assert one, name
                if any(launches(spec, arguments, size) != one for size in sizes):
                    found.add(name)
    return found


@pytest.mark.parametrize("arch", TARGETS)
def test_launches_are_the_same_for_any_batch(arch: str) -> None:
    assert differing(arch, SIZES, invariant=True) == set()


def test_and_they_are_not_elsewhere() -> None:
    """The test above can fail: these kernels choose by the batch."""
    expected = {"bf16_gemm", "block_fp8_gemm_quant", "moe_gemm", "moe_route", "mhc_pre", "sparse_decode", "index_score"}
    assert expected <= differing("sm_90", (17, 300), invariant=False)


def test_sizes_count_as_fixed_ones_only_inside() -> None:
    assert counted("tokens", 3) == 3
    with batch_invariant():
        assert counted("tokens", 3) == counted("tokens", 5000) == COUNTS_AS["tokens"]
        assert counted("heads", 16) == 16
    assert counted("tokens", 3) == 3


SLOW = ("mhc_pre", "mhc_post_pre", "mhc_pre_norm", "mhc_post_pre_norm", "inverse_rope_quant", "sample", "verify")
"""Kernels that take the interpreter seconds; those of ``mhc_pre`` are in ``mhc_head`` too."""


@pytest.mark.parametrize(
    ("kernels", "sizes"),
    [(tuple(sorted(set(ROWS) - set(SLOW))), "19"), pytest.param(tuple(ROWS), "1,3,8,17,40", marks=pytest.mark.slow)],
    ids=["some", "all"],
)
def test_rows_have_the_same_bits_in_any_batch(repo_root: Path, kernels: tuple[str, ...], sizes: str) -> None:
    path = f"{repo_root}:{repo_root / 'kernels'}"
    environ = child_environ({"TRITON_INTERPRET": "1", "PYTHONPATH": path})
    command = [sys.executable, "-m", "dsv4_kernels.testing.batches", "--device", "cpu", "--sizes", sizes]
    command += ["--kernels", ",".join(kernels)]
    done = subprocess.run(command, capture_output=True, text=True, env=environ, check=False)
    assert done.returncode in (0, 1), done.stderr
    verdicts = [json.loads(line) for line in done.stdout.splitlines()]
    assert {v["kernel"] for v in verdicts} == set(kernels)
    assert [v for v in verdicts if v["differs"]] == []
