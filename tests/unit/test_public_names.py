"""What ``import dsv4lab`` gives, and what it must not load."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import dsv4lab


def test_all_is_sorted_and_is_what_dir_shows() -> None:
    assert dsv4lab.__all__ == sorted(dsv4lab.__all__)
    assert dir(dsv4lab) == dsv4lab.__all__


@pytest.mark.parametrize("name", dsv4lab.__all__)
def test_every_public_name_resolves(name: str) -> None:
    assert getattr(dsv4lab, name) is not None


def test_type_checkers_see_the_same_names_from_the_same_modules() -> None:
    tree = ast.parse(Path(dsv4lab.__file__).read_text(encoding="utf-8"))
    guarded = next(n for n in tree.body if isinstance(n, ast.If))
    seen = {
        alias.name: node.module for node in guarded.body if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    assert seen == dsv4lab._HOMES
    assert sorted([*dsv4lab._HOMES, "__version__"]) == dsv4lab.__all__


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="'dsv4lab' has no attribute 'nonsense'"):
        dsv4lab.nonsense  # noqa: B018


def test_importing_the_package_loads_nothing_heavy() -> None:
    heavy = ("torch", "numpy", "plotly", "rich", "msgspec", "pyarrow")
    code = f"import sys, dsv4lab; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
