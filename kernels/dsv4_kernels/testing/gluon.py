"""Gluon kernels under Triton's interpreter, which knows no Gluon: the same code without its layouts.

What is left is Triton: reductions, scans, loads and stores mean the same whichever thread holds an element. So this
checks what a kernel computes, not how it is spread. Kernels with shared memory or barriers of their own cannot be had
this way.
"""

from __future__ import annotations

import ast
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

_LAYOUTS = ("BlockedLayout", "SliceLayout")
_HINTS = ("gdc_wait", "gdc_launch_dependents")
_IMPORTS = "from __future__ import annotations\nimport triton\nimport triton.language as tl\n"


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

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST | None:
        """Layouts go."""
        named = isinstance(node.value, ast.Call) and isinstance(node.value.func, ast.Attribute)
        return None if named and node.value.func.attr in _LAYOUTS else self.generic_visit(node)  # type: ignore[union-attr]

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        """``gluon.jit`` is ``triton.jit``."""
        if isinstance(node.value, ast.Name) and node.value.id == "gluon":
            return ast.Attribute(ast.Name("triton", ast.Load()), node.attr, ast.Load())
        return self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> ast.AST:
        """``gl`` is ``tl``, by whose name the interpreter knows constants."""
        return ast.Name("tl", node.ctx) if node.id == "gl" else node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        """Conversions are what they convert; nothing is given a layout; hints of launches do nothing."""
        self.generic_visit(node)
        if isinstance(node.func, ast.Name) and node.func.id in _HINTS:
            return ast.Constant(None)
        if isinstance(node.func, ast.Attribute) and node.func.attr == "convert_layout":
            return node.args[0]
        node.keywords = [k for k in node.keywords if k.arg != "layout"]
        return node
