"""Tidy tables: rows of plain values under named columns, with pandas or polars on request."""

from __future__ import annotations

import dataclasses
import html
import importlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from dsv4lab.errors import UnavailableError

_SHOWN = 50


class Table(Sequence[dict[str, Any]]):
    """An immutable list of rows. ``title`` says what they are."""

    def __init__(self, rows: Iterable[dict[str, Any]], columns: Sequence[str] = (), title: str = "") -> None:
        self._rows = tuple(rows)
        self.columns = tuple(columns) or (tuple(self._rows[0]) if self._rows else ())
        self.title = title

    @classmethod
    def of(cls, records: Iterable[Any], title: str = "") -> Table:
        """Rows from dataclass records, in the order of their fields."""
        return cls([{f.name: getattr(r, f.name) for f in dataclasses.fields(r)} for r in records], title=title)

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self._rows)

    def __getitem__(self, index: Any) -> Any:
        return self._rows[index]

    def column(self, name: str) -> list[Any]:
        """The values of one column."""
        return [row[name] for row in self._rows]

    def to_json(self) -> list[dict[str, Any]]:
        """Plain data."""
        return [dict(row) for row in self._rows]

    def to_pandas(self) -> Any:
        """A ``pandas.DataFrame``. Raises ``UnavailableError`` if pandas is not installed."""
        try:
            pandas = importlib.import_module("pandas")
        except ImportError:
            raise UnavailableError("pandas is not installed: pip install pandas") from None
        return pandas.DataFrame(list(self._rows), columns=list(self.columns))

    def to_polars(self) -> Any:
        """A ``polars.DataFrame``. Raises ``UnavailableError`` if polars is not installed."""
        try:
            polars = importlib.import_module("polars")
        except ImportError:
            raise UnavailableError("polars is not installed: pip install polars") from None
        return polars.DataFrame({name: self.column(name) for name in self.columns})

    def __repr__(self) -> str:
        return f"<Table {self.title or 'of'}: {len(self)} rows, columns {', '.join(self.columns)}>"

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{html.escape(name)}</th>" for name in self.columns)
        cells = (
            "".join(f"<td>{html.escape(_shown(row[name]))}</td>" for name in self.columns)
            for row in self._rows[:_SHOWN]
        )
        body = "".join(f"<tr>{row}</tr>" for row in cells)
        more = f"<p>{len(self) - _SHOWN} more rows</p>" if len(self) > _SHOWN else ""
        return f"<table><caption>{html.escape(self.title)}</caption><tr>{head}</tr>{body}</table>{more}"


def _shown(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else "" if value is None else str(value)
