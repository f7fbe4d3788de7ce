"""The index scores by runs of entries, which small sizes do not get by default, under Triton's interpreter."""

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
from dsv4_kernels.index_score.cases import _paged
from dsv4_kernels.registry import spec
from dsv4_kernels.testing.compare import check_arguments
from dsv4_kernels.testing.inputs import Inputs
from dsv4_kernels.testing.interpreter import repair

repair()
kernel = spec("index_score_paged")
for kind in ("bf16", "fp8", "fp4"):
    for visible, requests in (((0, 1, 64, 65, 300), None), ((130, 131, 132), (0, 0, 0))):
        arguments = _paged(Inputs("cpu", 3), kind, visible, requests, heads=16)
        if kind != "bf16":  # queries beyond float16, and a head that is all zeros
            arguments["q"] *= 1e6
            arguments["q"][:, 1] = 0.0
        found = check_arguments(kernel, kind, arguments, kernel.wrapper("long"))
        print(json.dumps([kind, len(visible), found.passes, found.text]))
"""


def test_runs_of_entries_agree_with_the_reference(repo_root: Path, tmp_path: Path) -> None:
    file = tmp_path / "long.py"
    file.write_text(SCRIPT, encoding="utf-8")
    environ = child_environ({"TRITON_INTERPRET": "1", "PYTHONPATH": f"{repo_root}:{repo_root / 'kernels'}"})
    done = subprocess.run([sys.executable, str(file)], capture_output=True, text=True, env=environ, check=False)
    assert done.returncode == 0, done.stderr
    verdicts = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(verdicts) == 6
    assert [verdict for verdict in verdicts if not verdict[2]] == []
