"""What the Hopper sibling of the index scores computes, under Triton's interpreter: its own layouts left out."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from dsv4lab.env import child_environ

pytest.importorskip("triton", reason="triton is not installed")

SCRIPT = """
import json
import sys
from dataclasses import replace
from pathlib import Path
from dsv4_kernels.index_score import hopper_op
from dsv4_kernels.index_score.cases import _paged
from dsv4_kernels.registry import spec
from dsv4_kernels.target import TARGETS, forced_target
from dsv4_kernels.testing import interpreter
from dsv4_kernels.testing.compare import check_arguments
from dsv4_kernels.testing.gluon import without_layouts
from dsv4_kernels.testing.inputs import Inputs

interpreter.repair()
module = without_layouts("dsv4_kernels.index_score._hopper", Path(sys.argv[1]))
hopper_op.index_score_hopper_kernel = module.index_score_hopper_kernel
hopper_op.target_of = lambda device: replace(TARGETS["sm_90"], units=3)  # nine programs, and one a token
kernel = spec("index_score_paged")
with forced_target("sm_90"):
    for kind in ("bf16", "fp8", "fp4"):
        for visible, requests in (((0, 1, 64, 65, 900), None), ((130, 131, 132), (0, 0, 0)), ((0, 0), None)):
            arguments = _paged(Inputs("cpu", 3), kind, visible, requests, heads=16)
            if kind != "bf16":  # queries beyond float16, and a head that is all zeros
                arguments["q"] *= 1e6
                arguments["q"][:, 1] = 0.0
            found = check_arguments(kernel, kind, arguments, kernel.wrapper("hopper"))
            print(json.dumps([kind, visible, found.passes, found.text]))
"""


def test_the_sibling_agrees_with_the_reference(repo_root: Path, tmp_path: Path) -> None:
    file = tmp_path / "sibling.py"
    file.write_text(SCRIPT, encoding="utf-8")
    environ = child_environ({"TRITON_INTERPRET": "1", "PYTHONPATH": f"{repo_root}:{repo_root / 'kernels'}"})
    command = [sys.executable, str(file), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, env=environ, check=False)
    assert done.returncode == 0, done.stderr
    verdicts = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(verdicts) == 9
    assert [verdict for verdict in verdicts if not verdict[2]] == []
