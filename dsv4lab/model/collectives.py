"""Collectives as ops: they read and write :data:`COMM`, so that all ranks run them in program order."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from dsv4lab.model.builder import OpListBuilder
from dsv4lab.overlap.arena import Lane
from dsv4lab.parallel.groups import Group
from dsv4lab.parallel.order import COMM

Tensor = torch.Tensor


def list_all_reduce(b: OpListBuilder, name: str, group: Group | None, x: Tensor, resource: str) -> None:
    """Sum ``x``, all of buffer ``resource``, over ``group``, in place; nothing where the rank is alone in it."""
    if group is not None:
        b.add(name, lambda lane: group.all_reduce(x, lane), (resource, COMM), (resource, COMM))


def list_all_gather(
    b: OpListBuilder, name: str, group: Group, x: Tensor, out: Tensor, reads: Sequence[str], writes: Sequence[str]
) -> None:
    """All ranks' ``x`` one after the other, into ``out``."""
    b.add(name, lambda _: group.all_gather(x, out), (*reads, COMM), (*writes, COMM))


def list_reduce_scatter(
    b: OpListBuilder, name: str, group: Group, x: Tensor, out: Tensor, kept: Tensor, reads: str, writes: Sequence[str]
) -> None:
    """The sum of all ranks' ``x[rank]`` into ``out``, and its first rows into ``kept``."""

    def run(lane: Lane) -> None:
        group.reduce_scatter(x, out, lane)
        kept.copy_(out[: kept.shape[0]])

    b.add(name, run, (reads, COMM), (*writes, COMM))


def list_lookup(b: OpListBuilder, table: Tensor, resource: str, ids_at: Sequence[str] = ()) -> Tensor:
    """Embeddings of the tokens in buffer ``resource [T, D]``, and that buffer.

    Where ranks share the vocabulary, ``table [V / tp, D]``, each gives its own rows and the sum has all. ``ids_at`` is
    the buffer that the token ids lie in, if an op of the same program writes them.
    """
    group = b.parallel.tp
    out = b.buffer(resource, table.shape[1])
    first = 0 if group is None else group.rank * table.shape[0]

    def lookup(_: Lane) -> None:
        ids = b.inputs.meta.token_ids
        if group is None:
            torch.index_select(table, 0, ids, out=out)
            return
        local = ids - first
        foreign = (local < 0) | (local >= table.shape[0])
        torch.index_select(table, 0, local.masked_fill_(foreign, 0), out=out)
        out.masked_fill_(foreign.unsqueeze(1), 0.0)

    b.add("embed.lookup", lookup, ids_at, (resource,))
    list_all_reduce(b, "embed.all_reduce", group, out, resource)
    return out
