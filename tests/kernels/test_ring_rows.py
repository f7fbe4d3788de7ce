"""Rows that the ring store writes whole, and who may follow whom where compression is two launches."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from dsv4_kernels.compress import cases as compress
from dsv4_kernels.launch import Launch, recorded
from dsv4_kernels.registry import Arguments, spec
from dsv4_kernels.ring_store import cases as ring
from dsv4_kernels.target import forced_target
from dsv4_kernels.testing.inputs import Inputs

from dsv4lab.env import child_environ

pytest.importorskip("triton", reason="triton is not installed")

STORE = """
import torch
from dsv4_kernels.ring_store import ring_store_pools_reference
from dsv4_kernels.ring_store.cases import _store
from dsv4_kernels.ring_store.triton_op import ring_store_pools
from dsv4_kernels.testing.compare import clone
from dsv4_kernels.testing.inputs import Inputs
from dsv4_kernels.testing.interpreter import repair

repair()
for n in (1, 30, 300):
    given = _store(Inputs("cpu", n), n, rows=400, fp8=True)
    given["pool"].fill_(255)
    if n > 1:
        given["dst"][3] = -1
    want, got = clone(given), clone(given)
    kept = given["dst"] >= 0
    ring_store_pools_reference(**{**want, "src": given["src"][kept], "dst": given["dst"][kept]})
    ring_store_pools(**got)
    written = torch.zeros(400, dtype=torch.bool)
    written[given["dst"][kept]] = True
    assert torch.equal(got["pool"][:, :462], want["pool"][:, :462]), "values and scales"
    assert torch.equal(got["rope_pool"], want["rope_pool"]), "rope"
    assert bool((got["pool"][written, 462:] == (0 if n > 256 else 255)).all()), "padding of written rows"
    assert bool((got["pool"][~written] == 255).all()), "other rows"
given = _store(Inputs("cpu", 7), 257, rows=300, fp8=True)
given["kv"][:, 70] = float("nan")
ring_store_pools(**given)
codes = given["pool"][given["dst"], :448].view(torch.float8_e4m3fn).float()
assert bool(codes[:, 70].isnan().all()) and int(codes.isnan().sum()) == 257, "NaN stays where it was"
print("as wanted")
"""


def test_whole_rows_are_the_references_and_end_in_zeros(repo_root: Path) -> None:
    environ = child_environ({"TRITON_INTERPRET": "1", "PYTHONPATH": f"{repo_root}:{repo_root / 'kernels'}"})
    done = subprocess.run([sys.executable, "-c", STORE], capture_output=True, text=True, env=environ, check=False)
    assert done.stdout.strip() == "as wanted", done.stderr


def launches_of(kernel: str, arguments: Arguments) -> list[Launch]:
    with forced_target("sm_90"), recorded() as launches:
        spec(kernel).wrapper()(**arguments)
    return launches


def rows_of_bytes(arguments: Arguments, stride: int, offset: int = 0) -> Arguments:
    """The pool's rows ``stride`` bytes apart, the first ``offset`` bytes behind where memory begins."""
    rows, width = arguments["pool"].shape
    memory = torch.empty(rows * stride + offset, dtype=torch.uint8, device="meta")
    return {**arguments, "pool": memory.as_strided((rows, width), (stride, 1), offset)}


@pytest.mark.parametrize(
    ("d", "rope", "stride", "offset", "wide"),
    [
        (512, 64, 512, 0, 512),
        (512, 64, 520, 8, 512),
        (512, 64, 516, 0, 0),  # words of 8 bytes would not be aligned
        (512, 64, 512, 4, 0),
        (64, 16, 64, 0, 0),  # a tile that rope shares
        (576, 64, 576, 0, 576),
    ],
)
def test_rows_are_written_whole_where_words_are_aligned(d: int, rope: int, stride: int, offset: int, wide: int) -> None:
    arguments = rows_of_bytes(ring._store(Inputs("meta", 0), 300, d=d, rope=rope, fp8=True), stride, offset)
    (launch,) = launches_of("ring_store", arguments)
    assert launch.constants["WIDE"] == wide


def test_plain_rows_have_no_padding_and_launches_of_their_own() -> None:
    (plain,) = launches_of("ring_store", ring._store(Inputs("meta", 0), 300))
    (packed,) = launches_of("ring_store", ring._store(Inputs("meta", 0), 300, fp8=True))
    (few,) = launches_of("ring_store", ring._store(Inputs("meta", 0), 256, fp8=True))
    assert [launch.constants["WIDE"] for launch in (plain, packed, few)] == [0, 512, 0]
    assert plain.config["ROWS"] != packed.config["ROWS"]


@pytest.mark.parametrize(("ratio", "entries"), [(128, 1), (128, 300), (128, 0), (4, 0), (4, 5)])
def test_what_reads_before_it_waits_follows_a_kernel_that_waits_first(ratio: int, entries: int) -> None:
    """The second launch of long windows asks for lists and rows early: not without the channels' kernel before it."""
    names = [
        launch.kernel.__name__
        for launch in launches_of("compress", compress._compress(Inputs("meta", 0), ratio, entries))
    ]
    assert len(names) == 2
    assert (names[1] == "_compress_finish_kernel") == (ratio == 128 and entries > 0)
    if names[1] == "_compress_finish_kernel":
        assert names[0] == "_compress_channels_kernel"
    else:
        assert names[1] == "_ring_store_kernel"
