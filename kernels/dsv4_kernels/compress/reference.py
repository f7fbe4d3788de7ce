"""KV compression, ratio 4 (overlapping windows of 8) and 128, in plain torch (dsv4-spec 2.9, 5.4)."""

from __future__ import annotations

import torch

from dsv4_kernels.paged_rows import IndexFp4Pages, IndexFp8Pages
from dsv4_kernels.rope import rope_table, rotate_tail
from dsv4_kernels.rows import Rows, put_rows
from dsv4_kernels.targets_of_rows import rows_of


def compress_reference(
    ks: torch.Tensor,
    state: torch.Tensor,
    ape: torch.Tensor,
    norm_weight: torch.Tensor,
    frequencies: torch.Tensor,
    eps: float,
    *,
    gather_state: torch.Tensor,
    gather_flat: torch.Tensor,
    from_flat: torch.Tensor,
    positions: torch.Tensor,
    pool: Rows,
    rows: torch.Tensor,
    state_src: torch.Tensor,
    state_dst: torch.Tensor,
) -> None:
    """Emit the entries whose window ends in this forward, then carry the unfinished windows' rows to the state ring.

    ``ks [T, 2 * c]`` float32 holds key and score of this forward's tokens (``c`` = head dim, or twice that for ratio
    4, halves A and B); ``state [rows, 2 * c]`` the ring of earlier tokens, scores without ``ape [ratio, c]``. Entry
    ``i`` pools the rows ``ks[gather_flat[i]]`` where ``from_flat[i]`` and ``state[gather_state[i]]`` elsewhere (all
    int64 or bool ``[n, W]``; a missing row is the state's sentinel with score -inf), per channel, by a softmax over
    the window. It is normed, rotated at ``positions[i]`` and stored at ``pool[rows[i]]``. Last,
    ``state[state_dst] = ks[state_src]``. Entries of row -1 and state rows -1 are padding, and left out.
    """
    real, carried = rows >= 0, state_dst >= 0
    gather_state, gather_flat, from_flat = gather_state[real], gather_flat[real], from_flat[real]
    positions, rows = positions[real], rows[real]
    state_src, state_dst = state_src[carried], state_dst[carried]
    if rows.numel():
        window = torch.where(from_flat.unsqueeze(-1), ks[gather_flat], state[gather_state])
        entry = _pool_window(window, ape, norm_weight.shape[0])
        entry = entry * torch.rsqrt(entry.square().mean(-1, keepdim=True) + eps) * norm_weight.float()
        cos, sin = rope_table(positions, frequencies)
        put_rows(pool, rows, rotate_tail(entry, cos, sin))
    if state_dst.numel():
        state.index_copy_(0, state_dst, ks[state_src])


def _pool_window(window: torch.Tensor, ape: torch.Tensor, d: int) -> torch.Tensor:
    """Pooling of ``window [n, W, 2 * c]`` to ``[n, d]``; for ``c == 2 d`` the older half gives its A channels."""
    keys, scores = window.chunk(2, dim=-1)
    if keys.shape[-1] == d:
        scores = scores + ape
    else:
        ratio = ape.shape[0]
        keys = torch.cat((keys[:, :ratio, :d], keys[:, ratio:, d:]), dim=1)
        bias = torch.cat((ape[:, :d], ape[:, d:]), dim=0)
        scores = torch.cat((scores[:, :ratio, :d], scores[:, ratio:, d:]), dim=1) + bias
    return (torch.softmax(scores, dim=1) * keys).sum(1)


def compress_pools_reference(
    ks: torch.Tensor,
    state: torch.Tensor,
    ape: torch.Tensor,
    norm_weight: torch.Tensor,
    frequencies: torch.Tensor,
    eps: float,
    *,
    gather_state: torch.Tensor,
    gather_flat: torch.Tensor,
    from_flat: torch.Tensor,
    positions: torch.Tensor,
    pool: torch.Tensor,
    rope_pool: torch.Tensor | None,
    rows: torch.Tensor,
    state_src: torch.Tensor,
    state_dst: torch.Tensor,
) -> None:
    """As :func:`compress_reference`, on the pair of tensors of the fp8 layout where ``rope_pool`` is given."""
    compress_reference(
        ks, state, ape, norm_weight, frequencies, eps, gather_state=gather_state, gather_flat=gather_flat,
        from_flat=from_flat, positions=positions, pool=rows_of(pool, rope_pool, norm_weight.shape[0]), rows=rows,
        state_src=state_src, state_dst=state_dst,
    )  # fmt: skip


def compress_index_pages_reference(
    ks: torch.Tensor,
    state: torch.Tensor,
    ape: torch.Tensor,
    norm_weight: torch.Tensor,
    frequencies: torch.Tensor,
    eps: float,
    *,
    gather_state: torch.Tensor,
    gather_flat: torch.Tensor,
    from_flat: torch.Tensor,
    positions: torch.Tensor,
    pages: torch.Tensor,
    kind: str,
    entries_per_page: int,
    rows: torch.Tensor,
    state_src: torch.Tensor,
    state_dst: torch.Tensor,
) -> None:
    """As :func:`compress_reference` for index keys that are stored rotated and quantised, ``kind`` fp8 or fp4.

    ``pages`` uint8 ``[n, bytes]`` are those of :class:`dsv4_kernels.paged_rows.IndexFp8Pages` or ``IndexFp4Pages``.
    """
    store = (IndexFp8Pages if kind == "fp8" else IndexFp4Pages)(pages, entries_per_page, norm_weight.shape[0])
    compress_reference(
        ks, state, ape, norm_weight, frequencies, eps, gather_state=gather_state, gather_flat=gather_flat,
        from_flat=from_flat, positions=positions, pool=store, rows=rows, state_src=state_src, state_dst=state_dst,
    )  # fmt: skip
