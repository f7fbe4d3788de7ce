"""What Markdown pages tell people to type: commands parse, `make` targets exist, Python compiles, names are there."""

from __future__ import annotations

import ast
import importlib
import re
import shlex
from pathlib import Path

import pytest

import dsv4lab
from dsv4lab.cli.main import COMMANDS, command_parser, load_command

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(ROOT.glob("docs/**/*.md"))]
MADE = {"changelog.md", "contributing.md", "cli.md"}  # by the site
PLACEHOLDER = re.compile(r"\.\.\.|\\\||^dsv4lab [A-Z]")
FENCE = re.compile(r"^ *```(?P<language>\w*)[^\n]*\n(?P<body>.*?)^ *```", re.MULTILINE | re.DOTALL)


def fences(page: Path) -> list[tuple[str, str]]:
    """Language and text of every fenced block, its indentation taken off."""
    found = []
    for fence in FENCE.finditer(page.read_text(encoding="utf-8")):
        lines = fence["body"].splitlines()
        margin = min((len(line) - len(line.lstrip()) for line in lines if line.strip()), default=0)
        found.append((fence["language"], "\n".join(line[margin:] for line in lines)))
    return found


def commands(page: Path) -> list[str]:
    """Every `dsv4lab` line of a block, and every piece of inline code that is one."""
    blocks = [line for language, text in fences(page) if language != "python" for line in text.splitlines()]
    inline = re.findall(r"`(dsv4lab [^`\n]+)`", FENCE.sub("", page.read_text(encoding="utf-8")))
    lines = [line.strip().removeprefix("torchrun --nproc-per-node 2 -m ") for line in blocks]
    return [line for line in (*lines, *inline) if line.startswith("dsv4lab ") and not PLACEHOLDER.search(line)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_commands_parse(page: Path) -> None:
    for line in commands(page):
        _, name, *words = shlex.split(line, comments=True)
        if name in {"--version", "--help"}:
            continue
        assert name in COMMANDS, line
        if not words or "--help" in words:
            continue
        if words == ["--json"]:  # said of a command, not a line to type
            continue
        command_parser(load_command(name)).parse_args(words)


def test_pages_with_commands_are_found() -> None:
    found = {page.name: len(commands(page)) for page in PAGES}
    assert found["README.md"] > 10
    assert found["tutorial.md"] >= 5


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_python_compiles(page: Path) -> None:
    for language, text in fences(page):
        if language == "python":
            tree = ast.parse(text)
            for node in ast.walk(tree):
                if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "lab":
                    assert hasattr(dsv4lab, node.attr), f"lab.{node.attr}"


def test_make_targets_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        named = re.findall(r"(?:`|^)make ([a-z-]+)", text, re.MULTILINE)
        assert set(named) <= targets, page


def test_modules_of_the_reference_exist() -> None:
    for page in sorted((ROOT / "docs" / "api").glob("*.md")):
        for name in re.findall(r"^::: ([\w.]+)$", page.read_text(encoding="utf-8"), re.MULTILINE):
            module, _, attribute = name.rpartition(".")
            try:
                importlib.import_module(name)
            except ModuleNotFoundError:
                assert hasattr(importlib.import_module(module), attribute), name


def test_links_between_pages_and_files_hold() -> None:
    broken = []
    for page in PAGES:
        text = FENCE.sub("", page.read_text(encoding="utf-8"))
        for target in re.findall(r"\]\(([^)\s#]+)[^)]*\)", text):
            place = (page.parent / target).resolve()
            made = place.name in MADE or place.parent == ROOT / "docs" / "gallery"
            if not (re.match(r"https?:", target) or place.exists() or made):
                broken.append(f"{page.relative_to(ROOT)}: {target}")
    assert broken == []


def test_links_to_the_gallery_name_notebooks() -> None:
    notebooks = {path.stem for path in (ROOT / "notebooks").glob("*.ipynb")} | {"index"}
    for page in PAGES:
        for name in re.findall(r"\]\((?:\.\./)?gallery/(\w+)\.md", page.read_text(encoding="utf-8")):
            assert name in notebooks, page


def test_the_gallery_is_small_and_names_no_machine_path() -> None:
    files = [path for path in (ROOT / "docs" / "gallery").rglob("*") if path.is_file()]
    sizes = {path.name: path.stat().st_size for path in files}
    assert {name: size for name, size in sizes.items() if size > 300_000} == {}
    assert sum(sizes.values()) < 4_000_000
    paths = re.compile(r"[\"' =](?:/home|/root|/tmp|/Users|/work)/")
    texts = {path.name: path.read_text(encoding="utf-8") for path in files if path.suffix in (".json", ".html")}
    assert [name for name, text in texts.items() if paths.search(text)] == []
