"""The kernels on their small cases under Triton's interpreter, and what is wrong with the interpreter itself."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from dsv4_kernels.registry import specs

from dsv4lab.env import child_environ

pytest.importorskip("triton", reason="triton is not installed")


def run_interpreted(repo_root: Path, *command: str) -> subprocess.CompletedProcess[str]:
    path = f"{repo_root}:{repo_root / 'kernels'}"
    environ = child_environ({"TRITON_INTERPRET": "1", "PYTHONPATH": path})
    return subprocess.run([sys.executable, *command], capture_output=True, text=True, env=environ, check=False)


@pytest.mark.parametrize("arch", ["sm_90", "gfx950"])
def test_every_kernel_agrees_with_its_reference(repo_root: Path, arch: str) -> None:
    done = run_interpreted(repo_root, "-m", "dsv4_kernels.testing.walk", "--device", "cpu", "--target", arch)
    assert done.returncode in (0, 1), done.stderr
    verdicts = [json.loads(line) for line in done.stdout.splitlines()]
    assert {v["kernel"] for v in verdicts} == {s.name for s in specs().values() if any(c.small for c in s.cases)}
    assert [f"{v['kernel']} {v['case']}: {v['text']}" for v in verdicts if not v["passes"]] == []


PROBE = """
import torch, triton, triton.language as tl
from dsv4_kernels.testing.interpreter import repair

@triton.jit
def product(a_ptr, b_ptr, c_ptr):
    at = tl.arange(0, 16)[:, None] * 16 + tl.arange(0, 16)[None, :]
    tl.store(c_ptr + at, tl.dot(tl.load(a_ptr + at), tl.load(b_ptr + at)))

@triton.jit
def rounded(x_ptr, y_ptr):
    at = tl.arange(0, 16)
    tl.store(y_ptr + at, tl.load(x_ptr + at).to(tl.bfloat16))

def wrong():
    torch.manual_seed(0)
    a, b = torch.randn(2, 16, 16).bfloat16()
    c = torch.empty(16, 16)
    product[(1,)](a, b, c)
    x = torch.randn(16)
    y = torch.empty(16, dtype=torch.bfloat16)
    rounded[(1,)](x, y)
    return [not torch.allclose(c, a.float() @ b.float(), atol=1e-4), not torch.equal(y, x.bfloat16())]

before = wrong()
repair()
print(before, wrong())
"""


def test_the_interpreter_is_wrong_about_bf16_and_repaired(repo_root: Path, tmp_path: Path) -> None:
    # When the first half fails, Triton has been put right and `dsv4_kernels.testing.interpreter.repair` may go.
    file = tmp_path / "probe.py"
    file.write_text(PROBE, encoding="utf-8")
    done = run_interpreted(repo_root, str(file))
    assert done.stdout.strip() == "[True, True] [False, False]", done.stderr


SIBLINGS = """
import importlib
import sys
from pathlib import Path
import torch
from dsv4_kernels.index_topk import triton_op
from dsv4_kernels.index_topk._launch import TAIL
from dsv4_kernels.registry import spec
from dsv4_kernels.testing import interpreter
from dsv4_kernels.testing.gluon import without_layouts
from dsv4_kernels.testing.walk import attempt

interpreter.repair()
sys.path.insert(0, sys.argv[2])
sys.modules["dsv4_kernels.index_topk._shared"] = importlib.import_module("plain_shared")
without_layouts("dsv4_kernels.index_topk._counting", Path(sys.argv[1]))
kernel = without_layouts("dsv4_kernels.index_topk._tail", Path(sys.argv[1]))._index_topk_tail_kernel

topk, done = spec("index_topk"), []
alone = [c for c in TAIL.candidates if c["CTAS"] == 1]
for configs in (alone, [c for c in TAIL.candidates if c["CTAS"] > 1]):

    def call(scores, visible, k, out):
        chosen = next(c for c in configs if scores.shape[1] <= c["BLOCK"])
        triton_op.launch_rows(kernel, scores, visible, k, out, chosen)

    for case in topk.cases:
        if case.small and case.name != "two-launches":  # whose 16384 lanes take long
            verdict = attempt(topk, case, torch.device("cpu"), call)
            done.append(case.name)
            assert verdict.passes, f"{configs[0]} {case.name}: {verdict.text}"
print(*done)
"""


def test_the_top_k_of_nvidia_is_right_whatever_its_layouts(repo_root: Path, tmp_path: Path) -> None:
    file = tmp_path / "sibling.py"
    file.write_text(SIBLINGS, encoding="utf-8")
    done = run_interpreted(repo_root, str(file), str(tmp_path), str(Path(__file__).parent))
    assert done.returncode == 0, done.stderr
    cases = done.stdout.split()
    assert all(cases.count(name) == 2 for name in ("ties", "all-equal", "odd-values", "wild"))
