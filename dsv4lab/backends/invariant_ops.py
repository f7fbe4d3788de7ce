"""The Triton backend with results of a row that do not depend on the batch around it, op by op."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, wraps
from typing import Any

from dsv4_kernels.invariant import batch_invariant

from dsv4lab.backends.base import Ops
from dsv4lab.backends.triton_ops import TritonOps

OPS = tuple(name for name in vars(Ops) if not name.startswith("_"))
"""Every op that model code calls."""


class InvariantOps(TritonOps):
    """See :class:`dsv4lab.backends.triton_ops.TritonOps`; each op runs inside :func:`batch_invariant`.

    Costs: no kernels for few tokens alone, matrix tiles of 64 rows or less in prefill, and our own products in place of
    the vendor library's.
    """

    def __init__(self) -> None:
        super().__init__()
        for name in OPS:
            setattr(self, name, _within(getattr(self, name)))


def _within(op: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(op)
    def run(*args: Any, **kwargs: Any) -> Any:
        with batch_invariant():
            return op(*args, **kwargs)

    return run


@cache
def invariant_ops() -> Any:
    """The one instance. Raises :class:`UnavailableError` without Triton."""
    return InvariantOps()
