"""Audit mode: does every op touch only what it declared? Runs on serial streams, for any backend."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from dsv4lab.errors import HazardError
from dsv4lab.overlap.arena import Arena, Lane
from dsv4lab.overlap.ops import Op

_INT_POISON = -(2**31) + 12345
_BYTE_POISON = 0xFF
Resources = Mapping[str, Sequence[torch.Tensor]]
_Saved = dict[str, list[torch.Tensor]]


def audit(ops: Sequence[Op], resources: Resources, arena: Arena) -> None:
    """Run ``ops`` once in program order, checking each declaration.

    Each op runs twice from the same state: as it is, and with every resource that it did not declare as read filled
    with NaN (integers: an absurd number). Undeclared resources must keep their bytes, and what it writes must come out
    the same both times, byte for byte. The state after the audit is that of the plain run.

    Raises:
        HazardError: names the op and the resource.

    """
    for op in ops:
        _audit_op(op, resources, Lane("main", arena))


def _audit_op(op: Op, resources: Resources, lane: Lane) -> None:
    unknown = [r for r in (*op.reads, *op.writes) if r not in resources]
    if unknown:
        raise HazardError(f"op {op.label} declares {unknown[0]}, which is no resource of this program")
    before = _save(resources)
    op.run(lane)
    after = _save(resources)
    for name in resources:
        if name not in op.writes and not _same(before[name], after[name]):
            raise HazardError(f"op {op.label} wrote {name} without declaring it")
    hidden = [name for name in resources if name not in op.reads]
    if not _same_when_poisoned(op, resources, lane, before, after, hidden):
        culprits = [n for n in hidden if not _same_when_poisoned(op, resources, lane, before, after, [n])]
        raise HazardError(f"op {op.label} read {culprits[0] if culprits else 'an input'} without declaring it")
    _restore(resources, after)


def _same_when_poisoned(
    op: Op, resources: Resources, lane: Lane, before: _Saved, after: _Saved, poisoned: Sequence[str]
) -> bool:
    _restore(resources, before)
    for name in poisoned:
        for tensor in resources[name]:
            tensor.fill_(_poison_of(tensor))
    try:
        op.run(lane)
    except (RuntimeError, IndexError, ValueError):
        return False
    return all(
        _written_alike(now, old, new, name in poisoned)
        for name in op.writes
        for now, old, new in zip(resources[name], before[name], after[name], strict=True)
    )


def _written_alike(now: torch.Tensor, before: torch.Tensor, after: torch.Tensor, poisoned: bool) -> bool:
    """Whether a written tensor came out as in the plain run; where the poison still stands, nothing was written.

    Packed bytes may happen to be written as what poison is: then the plain run shows them too.
    """
    if not poisoned:
        return _equal(now, after)
    untouched = now.isnan() if now.is_floating_point() else (now == _poison_of(now)) & (after != _poison_of(now))
    return _equal(torch.where(untouched, before, now), after)


def _poison_of(tensor: torch.Tensor) -> float:
    """What no op writes: NaN, an absurd integer, or the byte that is NaN in every packed format."""
    if tensor.dtype is torch.uint8:
        return _BYTE_POISON
    return float("nan") if tensor.is_floating_point() else _INT_POISON


def _save(resources: Resources) -> _Saved:
    return {name: [t.clone() for t in tensors] for name, tensors in resources.items()}


def _restore(resources: Resources, saved: _Saved) -> None:
    for name, tensors in resources.items():
        for tensor, old in zip(tensors, saved[name], strict=True):
            tensor.copy_(old)


def _same(left: Sequence[torch.Tensor], right: Sequence[torch.Tensor]) -> bool:
    return all(_equal(a, b) for a, b in zip(left, right, strict=True))


def _equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))
