"""Gluon kernels under Triton's interpreter, which knows no Gluon: the same code without its layouts.

What is left is Triton: reductions, scans, loads and stores mean the same whichever thread holds an element. So this
checks what a kernel computes, not how it is spread, nor whether it waits where it must: copies to shared memory and
matrix products are done at once. Kernels whose warps do different things cannot be had this way.
"""

from __future__ import annotations

import ast
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import triton.language as tl

_HINTS = ("gdc_wait", "gdc_launch_dependents", "fence_async_shared", "thread_barrier")
_IMPORTS = """from __future__ import annotations
import triton
import triton.language as tl
from dsv4_kernels.testing.gluon import Shared, async_copy, warpgroup_mma, warpgroup_mma_wait
"""


class Shared:
    """Shared memory of a program: what was stored last at each index."""

    def __init__(self) -> None:
        self._held: dict[int, Any] = {}

    def index(self, at: Any) -> _Place:
        """The place number ``at``."""
        return _Place(self._held, int(at.handle.data.item()) if isinstance(at, tl.tensor) else int(at))


class _Place:
    def __init__(self, held: dict[int, Any], at: int) -> None:
        self._held, self._at = held, at

    def store(self, value: Any) -> None:
        self._held[self._at] = value

    def load(self, layout: None) -> Any:
        del layout
        return self._held[self._at]

    def permute(self, order: tuple[int, ...]) -> Any:
        return tl.permute(self._held[self._at], order)


class async_copy:
    """Copies that are there at once."""

    @staticmethod
    def async_copy_global_to_shared(place: _Place, pointer: Any) -> None:
        """Copy a tile."""
        place.store(tl.load(pointer))

    @staticmethod
    def commit_group() -> None:
        """Nothing is under way."""

    @staticmethod
    def wait_group(outstanding: int) -> None:
        """Nothing is under way."""


def warpgroup_mma(a: Any, b: Any, acc: Any, *, use_acc: bool = True, is_async: bool) -> Any:
    """The product, done at once."""
    del is_async
    product = tl.dot(a, b)
    return acc + product if use_acc else product


def warpgroup_mma_wait(outstanding: int, deps: list[Any]) -> Any:
    """Of one product: itself."""
    del outstanding
    (product,) = deps
    return product


def without_layouts(name: str, folder: Path) -> ModuleType:
    """The module called ``name`` as Triton, written to ``folder`` and put in the place of that module.

    :class:`ValueError` names a module that has no source file.
    """
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        raise ValueError(f"module {name} has no source file")
    tree = _Plain().visit(ast.parse(Path(spec.origin).read_text(encoding="utf-8")))
    file = folder / f"{name.replace('.', '_')}.py"
    file.write_text(_IMPORTS + ast.unparse(ast.fix_missing_locations(tree)) + "\n", encoding="utf-8")
    own = importlib.util.spec_from_file_location(name, file)
    assert own is not None
    assert own.loader is not None
    module = importlib.util.module_from_spec(own)
    sys.modules[name] = module
    own.loader.exec_module(module)
    return module


class _Plain(ast.NodeTransformer):
    """Gluon to Triton; imports go, since what they name is imported anew."""

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.AST | None:
        """Imports of Triton go."""
        return None if (node.module or "").startswith(("triton", "__future__")) else node

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        """``gluon.jit`` is ``triton.jit``."""
        if isinstance(node.value, ast.Name) and node.value.id == "gluon":
            return ast.Attribute(ast.Name("triton", ast.Load()), node.attr, ast.Load())
        return self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> ast.AST:
        """``gl`` is ``tl``, by whose name the interpreter knows constants."""
        return ast.Name("tl", node.ctx) if node.id == "gl" else node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        """Conversions are what they convert; layouts are None, and nothing is given one; hints do nothing."""
        self.generic_visit(node)
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if name in _HINTS or name.endswith("Layout"):
            return ast.Constant(None)
        if name == "convert_layout":
            return node.args[0]
        if name == "allocate_shared_memory":
            return ast.Call(ast.Name("Shared", ast.Load()), [], [])
        node.keywords = [k for k in node.keywords if k.arg != "layout"]
        return node
