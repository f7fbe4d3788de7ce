"""A compiled loop gives the same bits in the process that compiled it and in one that loads it from the disk.

It does if it stands alone: a loop that calls another by its symbol runs whichever copy of that was loaded first.
"""

from __future__ import annotations

import ast
import errno
import threading
from collections.abc import Iterator
from pathlib import Path

import dsv4_kernels
import numpy as np
import pytest
from dsv4_kernels import native

from dsv4lab.engine import warm
from dsv4lab.errors import UnavailableError

FILES = sorted(Path(dsv4_kernels.__path__[0]).glob("*/_native.py"))
OWN = 3  # the loop itself, and its entries from Python and from C


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """``native.LOOPS`` of this test alone."""
    loops: list[object] = []
    monkeypatch.setattr(native, "LOOPS", loops)
    return loops


def functions(path: Path) -> Iterator[tuple[ast.FunctionDef, str]]:
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef):
            (decorator,) = node.decorator_list
            assert isinstance(decorator, ast.Name), f"{path}: {node.name}"
            yield node, decorator.id


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.parent.name)
def test_loops_call_parts_only(path: Path) -> None:
    kinds = {node.name: kind for node, kind in functions(path)}
    assert set(kinds.values()) <= {"native", "native_part"}
    for node, _ in functions(path):
        called = {n.func.id for n in ast.walk(node) if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)}
        assert {kinds[name] for name in called & set(kinds)} <= {"native_part"}, node.name


def test_the_machine_code_of_a_loop_stands_alone() -> None:
    warm.warm_cpu_loops()
    compiled = [(loop, found) for loop in native.LOOPS for found in loop.overloads.values()]
    assert len({loop.py_func for loop, _ in compiled}) >= 18
    for loop, found in compiled:
        defined = [f.name for f in found.library._shared_module.functions if not f.is_declaration]
        ours = [name for name in defined if "dsv4_kernels" in name]
        assert len(ours) == OWN, (loop.py_func.__module__, loop.py_func.__name__, ours)
        assert all(found.fndesc.mangled_name in name or loop.py_func.__name__ in name for name in ours)


def test_a_loop_without_a_place_for_its_cache_is_compiled_all_the_same(registry: list[object]) -> None:
    made: dict[str, object] = {}
    exec(compile("def twice(x):\n    x[0] = 2 * x[0]\n", "<nowhere>", "exec"), made)
    loop = native.native(made["twice"])  # type: ignore[arg-type]
    x = np.ones(1)
    loop(x)
    assert (x[0], registry, loop.stats.cache_path) == (2.0, [loop], None)
    assert warm.loop_store() is None


def test_a_full_disk_is_an_error_that_names_the_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(warm, "_done", threading.Event())
    monkeypatch.setattr(warm, "run_once", full)
    with pytest.raises(UnavailableError, match="No space left on device; NUMBA_CACHE_DIR names another folder"):
        warm.warm_cpu_loops()
