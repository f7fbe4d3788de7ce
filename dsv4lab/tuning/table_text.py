"""Tables as Markdown."""

from __future__ import annotations

Table = tuple[tuple[str, ...], list[tuple[str, ...]]]
"""Column names and rows of cells."""


def markdown_table(table: Table, left: int = 1) -> str:
    """A table with its first ``left`` columns and the last aligned left."""
    columns, rows = table
    marks = ["---" if at < left or at == len(columns) - 1 else "---:" for at in range(len(columns))]
    lines = [columns, tuple(marks), *rows]
    return "\n".join(f"| {' | '.join(plain(cell) for cell in line)} |" for line in lines)


def plain(text: str) -> str:
    """``text`` on one line, nothing in it read as a table's border or as HTML."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")
