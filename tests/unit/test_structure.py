"""The shape of the repository: layout, import directions, budgets, one reader of the environment."""

from __future__ import annotations

import ast
import os
import re
import statistics
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LAB = ROOT / "dsv4lab"
KERNELS = ROOT / "kernels" / "dsv4_kernels"
ARCHITECTURE = ROOT / "docs" / "architecture.md"

NO_TORCH = (
    "dsv4lab.timeline.timeline",
    "dsv4lab.timeline.program",
    "dsv4lab.timeline.records",
    "dsv4lab.timeline.busy",
    "dsv4lab.trace.load",
    "dsv4lab.queues.policies",
    "dsv4lab.kv.geometry",
    "dsv4lab.kv.allocator",
    "dsv4lab.engine.scheduler",
    "dsv4lab.engine.client",
    "dsv4lab.overlap.plan",
    "dsv4lab.viz",
    "dsv4lab.config.resolve",
    "dsv4lab.cli.main",
)


def sources(root: Path) -> list[Path]:
    return sorted(root.rglob("*.py"))


def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def functions(root: Path) -> Iterator[tuple[str, int]]:
    """``path:name`` and lines from ``def`` to the end, of every function."""
    for path in sources(root):
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield f"{path.relative_to(ROOT)}:{node.name}", (node.end_lineno or node.lineno) - node.lineno + 1


def run_python(code: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "kernels")])}
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, cwd=ROOT, check=False)


@dataclass(frozen=True)
class Budget:
    root: Path
    file_median: int
    file_max: int
    function_p90: int
    function_max: int


BUDGETS = (Budget(LAB, 120, 400, 35, 80), Budget(KERNELS, 120, 500, 90, 200))


@pytest.mark.parametrize("budget", BUDGETS, ids=lambda b: b.root.name)
def test_files_are_small(budget: Budget) -> None:
    lines = {str(p.relative_to(ROOT)): len(p.read_text(encoding="utf-8").splitlines()) for p in sources(budget.root)}
    assert {path: n for path, n in lines.items() if n > budget.file_max} == {}
    with_code = [n for path, n in lines.items() if not path.endswith("__init__.py")]
    assert statistics.median(with_code or [0]) <= budget.file_median


@pytest.mark.parametrize("budget", BUDGETS, ids=lambda b: b.root.name)
def test_functions_are_small(budget: Budget) -> None:
    lengths = dict(functions(budget.root))
    assert {name: n for name, n in lengths.items() if n > budget.function_max} == {}
    ordered = sorted(lengths.values()) or [0]
    assert ordered[int(0.9 * (len(ordered) - 1))] <= budget.function_p90


def test_kernels_is_a_source_root_and_not_a_package() -> None:
    # PyPI has a package `kernels`: with an __init__ here, one would hide the other.
    assert not (ROOT / "kernels" / "__init__.py").exists()


def test_test_folders_are_not_packages() -> None:
    assert sorted(ROOT.glob("tests/**/__init__.py")) == []
    names = [p.name for p in ROOT.glob("tests/**/test_*.py")]
    assert sorted(names) == sorted(set(names)), "test files need names of their own"


def test_every_package_folder_has_an_init_with_a_docstring() -> None:
    for root in (LAB, KERNELS):
        for folder in {p.parent for p in sources(root)}:
            assert ast.get_docstring(tree(folder / "__init__.py")), f"{folder.relative_to(ROOT)}/__init__.py"


def test_only_env_reads_the_environment() -> None:
    readers = set()
    for path in sources(LAB) + sources(KERNELS):
        for node in ast.walk(tree(path)):
            attribute = isinstance(node, ast.Attribute) and node.attr in {"environ", "environb", "getenv", "putenv"}
            imported = isinstance(node, ast.ImportFrom) and node.module == "os" and node.names[0].name != "PathLike"
            if attribute or imported:
                readers.add(path.relative_to(LAB).as_posix() if path.is_relative_to(LAB) else path.name)
    assert readers <= {"env.py"}


def test_no_absolute_home_of_a_machine_in_the_sources() -> None:
    home = re.compile(r"[\"'](/home|/root|/work|/Users|/tmp)/")
    files = sources(LAB) + sources(KERNELS) + sorted((ROOT / "notebooks").glob("*.ipynb"))
    found = [str(path.relative_to(ROOT)) for path in files if home.search(path.read_text(encoding="utf-8"))]
    assert found == []


def test_import_contracts() -> None:
    done = run_python("import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports(no_cache=True))")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("module", NO_TORCH)
def test_runs_without_torch(module: str) -> None:
    heavy = "{'torch', 'triton', 'transformers', 'ipywidgets', 'dsv4_kernels'}"
    done = run_python(f"import sys, {module}; print(sorted({heavy} & set(sys.modules)))")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"


def test_architecture_page_names_every_package_in_dependency_order() -> None:
    listed = re.findall(r"^- `dsv4lab\.(\w+)`", ARCHITECTURE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    packages = {p.parent.name for p in LAB.glob("*/__init__.py")}
    modules = {p.stem for p in LAB.glob("*.py") if p.stem not in {"__init__", "_version"}}
    assert sorted(listed) == sorted(packages | modules)
    assert [rank(name) for name in listed] == sorted(rank(name) for name in listed)


def rank(name: str) -> int:
    """Place of a package in the import contract, lowest layer first."""
    contract = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    layers = contract[contract.index("layers = [") :].partition("]")[0].splitlines()[1:]
    return next(at for at, line in enumerate(reversed(layers)) if re.search(rf"\b{name}\b", line))
