"""docs/pitfalls.md and the tests that it names agree, in both directions."""

from __future__ import annotations

import ast
import re
from pathlib import Path

NUMBERS = [*map(str, range(1, 35)), "34a", *map(str, range(35, 48))]


def table(page: str, heading: str) -> dict[str, str]:
    """Number to the cell with its tests, of the first table after ``heading``."""
    part = page.split(heading, 1)[1].split("\n## ", 1)[0]
    return dict(re.findall(r"^\| (\d+a?) \|[^|]*\| (.+) \|$", part, flags=re.MULTILINE))


def functions_of(folder: Path) -> set[str]:
    """Names of all test functions in ``folder``."""
    trees = (ast.parse(path.read_text(encoding="utf-8")) for path in folder.glob("test_*.py"))
    return {node.name for tree in trees for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_every_number_names_tests_that_exist_and_every_test_is_named(repo_root: Path) -> None:
    page = (repo_root / "docs" / "pitfalls.md").read_text(encoding="utf-8")
    known = functions_of(repo_root / "tests" / "cpu")
    files = {path.name for path in (repo_root / "tests").glob("*/test_*.py")}
    listed: set[str] = set()
    for prefix, heading, numbers in (
        ("test_pitfall_", "# Pitfalls", NUMBERS),
        ("test_acceptance_", "## Acceptance", [*map(str, range(1, 13))]),
    ):
        cells = table(page, heading)
        assert list(cells) == numbers
        for number, cell in cells.items():
            named = re.findall(rf"`({prefix}\w+)`", cell)
            assert all(name.startswith(f"{prefix}{number.rjust(2, '0')}_") for name in named), number
            assert set(re.findall(r"`(test_\w+\.py)`", cell)) <= files, number
            assert named or "`" in cell or "not possible" in cell or cell == "open", number
            listed |= set(named)
    assert listed == {name for name in known if name.startswith(("test_pitfall_", "test_acceptance_"))}
