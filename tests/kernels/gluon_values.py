"""Gluon functions on the CPU, by the values of their tensors: layouts mean nothing, products are done at once.

For kernels whose warps have roles: a test calls one role after the other. So this checks what the roles compute and
where they put it, not whether they wait where they must.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch


class Values:
    """A tensor of the program."""

    def __init__(self, held: torch.Tensor) -> None:
        self.held = held

    def reshape(self, shape: Iterable[int]) -> Values:
        """As in Gluon."""
        return Values(self.held.reshape(tuple(shape)))

    def permute(self, order: Iterable[int]) -> Values:
        """As in Gluon."""
        return Values(self.held.permute(tuple(order)))

    def to(self, dtype: torch.dtype, bitcast: bool = False) -> Values:
        """As in Gluon."""
        return Values(self.held.contiguous().view(dtype) if bitcast else self.held.to(dtype))

    def __getitem__(self, at: Any) -> Values:
        return Values(self.held[at])

    def __neg__(self) -> Values:
        return Values(-self.held)

    def __bool__(self) -> bool:
        return bool(self.held)

    def __index__(self) -> int:
        return int(self.held)


def _binary(name: str) -> None:
    of = getattr(operator, name)

    def left(a: Values, b: Any) -> Any:
        return NotImplemented if isinstance(b, Places) else Values(of(a.held, _held(b)))

    def right(a: Values, b: Any) -> Any:
        return Values(of(_held(b), a.held))

    setattr(Values, f"__{name.strip('_')}__", left)
    if name not in ("eq", "lt", "gt", "ge"):
        setattr(Values, f"__r{name.strip('_')}__", right)


class Places:
    """A pointer into ``memory``, or a tensor of them."""

    def __init__(self, memory: torch.Tensor, at: Any = 0) -> None:
        self.memory, self.at = memory, at

    def __add__(self, more: Any) -> Places:
        return Places(self.memory, self.at + _held(more))

    __radd__ = __add__

    def __sub__(self, less: Any) -> Places:
        return Places(self.memory, self.at - _held(less))

    def __getitem__(self, at: Any) -> Places:
        return Places(self.memory, self.at[at])


class Shared:
    """Shared memory."""

    def __init__(self, held: torch.Tensor) -> None:
        self.held = held

    def index(self, at: Any) -> Shared:
        """As in Gluon."""
        return Shared(self.held[int(at)])

    def slice(self, start: Any, length: Any, dim: int = 0) -> Shared:
        """As in Gluon."""
        return Shared(self.held.narrow(dim, int(start), int(length)))

    def reshape(self, shape: Iterable[int]) -> Shared:
        """As in Gluon."""
        return Shared(self.held.view(tuple(shape)))

    def _reinterpret(self, dtype: torch.dtype, shape: Iterable[int], layout: Any) -> Shared:
        """As in Gluon."""
        del layout
        return Shared(self.held.view(dtype).view(tuple(shape)))

    def load(self, layout: Any = None) -> Values:
        """As in Gluon."""
        del layout
        return Values(self.held.clone())

    def store(self, value: Values) -> None:
        """As in Gluon."""
        assert self.held.shape == value.held.shape
        self.held.copy_(value.held)


for _name in ("add", "sub", "mul", "truediv", "and_", "or_", "rshift", "lshift", "eq", "lt", "gt", "ge"):
    _binary(_name)


def _held(value: Any) -> Any:
    return value.held if isinstance(value, Values) else value


def _tensor(value: Any) -> torch.Tensor:
    return torch.as_tensor(_held(value))


def load(places: Places, **_: Any) -> Values:
    """As in Gluon, without a mask."""
    return Values(places.memory[torch.as_tensor(places.at)])


def store(places: Places, value: Any, mask: Any = None) -> None:
    """As in Gluon."""
    at, values = torch.broadcast_tensors(torch.as_tensor(places.at), _tensor(value).to(places.memory.dtype))
    if mask is not None:
        there = torch.broadcast_to(_held(mask), at.shape)
        at, values = at[there], values[there]
    places.memory[at] = values


def _expanded(value: Any, axis: int) -> Any:
    if isinstance(value, Places):
        return Places(value.memory, value.at.unsqueeze(axis))
    return Values(value.held.unsqueeze(axis))


def _where(condition: Any, a: Any, b: Any) -> Any:
    if isinstance(condition, bool):
        return a if condition else b
    return Values(torch.where(_held(condition), _tensor(a), _tensor(b)))


def language(program: Callable[[], int], programs: int) -> SimpleNamespace:
    """What functions know as ``gl``, for the program whose number ``program`` gives, of ``programs``."""
    return SimpleNamespace(
        program_id=lambda _: program(), num_programs=lambda _: programs, constexpr=None,
        float32=torch.float32, int32=torch.int32, int16=torch.int16, int64=torch.int64, bfloat16=torch.bfloat16,
        arange=lambda begin, end, layout=None: Values(torch.arange(begin, end)),
        zeros=lambda shape, dtype, layout=None: Values(torch.zeros(shape, dtype=dtype)),
        full=lambda shape, value, dtype, layout=None: Values(torch.full(shape, int(value), dtype=dtype)),
        convert_layout=lambda value, layout, assert_trivial=False: value,
        split=lambda value: (Values(value.held[..., 0]), Values(value.held[..., 1])),
        join=lambda a, b: Values(torch.stack([a.held, b.held], -1)),
        sum=lambda value, axis: Values(value.held.sum(axis)), min=lambda value, axis: Values(value.held.amin(axis)),
        exp=lambda value: Values(value.held.exp()), rsqrt=lambda value: Values(value.held.rsqrt()),
        maximum=lambda a, b: Values(torch.maximum(_tensor(a), _tensor(b))),
        minimum=lambda a, b: Values(torch.minimum(_tensor(a), _tensor(b))),
        where=_where, expand_dims=_expanded, thread_barrier=lambda: None, static_range=range, load=load, store=store,
        BlockedLayout=lambda *_: None, SliceLayout=lambda *_: None, NVMMASharedLayout=lambda *_: None,
    )  # fmt: skip


def mma_v2(a: Values, b: Values, acc: Values) -> Values:
    """Batched products, added to ``acc``."""
    return Values(torch.bmm(a.held.float(), b.held.float()) + acc.held)


class _Bare(ast.NodeTransformer):
    """Imports and decorators go, and what is known at compile time is an integer or nothing (a layout)."""

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        """Names are given by the caller."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        """A plain function."""
        node.decorator_list, node.returns = [], None
        for argument in (*node.args.args, *node.args.kwonlyargs):
            argument.annotation = None
        return self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        """A plain assignment."""
        assert node.value is not None
        return self.generic_visit(ast.Assign([node.target], node.value))

    def visit_Call(self, node: ast.Call) -> ast.AST:
        """``gl.constexpr(n)`` is ``n``, or None where ``n`` is a layout."""
        if isinstance(node.func, ast.Attribute) and node.func.attr == "constexpr":
            (value,) = node.args
            return ast.Constant(None) if isinstance(value, ast.Call) else value
        return self.generic_visit(node)


def functions(paths: Iterable[Path], names: dict[str, Any]) -> dict[str, Any]:
    """The functions of these files; ``names``: what they use beside their own, and in the place of their own."""
    known = dict(names)
    for path in paths:
        tree = ast.fix_missing_locations(_Bare().visit(ast.parse(path.read_text(encoding="utf-8"))))
        exec(compile(tree, str(path), "exec"), known)
        known |= names
    return known
