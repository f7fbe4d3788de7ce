"""Hopper attention with the scores in a warpgroup of its own: a scorer and two accumulators, for any producer (Gluon).

The scorer multiplies Q with a stage's keys (wgmma, heads on rows), does the softmax and leaves the weights in shared
memory. Each accumulator multiplies them with its half of the value dims. So every score is computed once, and the
accumulators' products run beside the scorer's next one.

The scorer's messages, one per stage and after an item's last stage one more, are phases of three barriers: ``a_full``,
the accumulators may shrink their results by ``notes[0]`` (of the last message: take maximum and sum from ``notes``);
``p_full``, the weights are there; ``p_empty``, both accumulators are done with the message.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from dsv4_kernels.sparse_decode._hopper import (
    HALF,
    HEADS,
    KEYS,
    LOG2E,
    NEGATIVE,
    _item,
    _put_part,
    _put_result,
)

LEAST = gl.constexpr(-1.0e30)  # of a maximum: a key that is not there counts as less, for any scale above 1e-7
COLUMNS = gl.constexpr(128)  # of one product with the values: with 16 warps and more the assembler takes no 256


@gluon.jit
def _rows_from(prefix_indices, extend_indices, begin, prefix, own_begin, key, column, last, EXTEND: gl.constexpr):
    """Row of each of ``KEYS`` keys from ``key`` on, -1: none; ``column`` is a key's place within those of its lane.

    A lane's number is asked for anew, so that no register holds it through the programs of other warps.
    """
    key = gl.inline_asm_elementwise(
        "{.reg .b32 l; mov.u32 l, %laneid; and.b32 l, l, 3; shl.b32 l, l, 1; add.s32 $0, l, $1;}",
        "=r,r",
        [column * 0 + key],
        dtype=gl.int32,
        is_pure=True,
        pack=1,
    )
    in_pool = column < (gl.minimum(prefix, last) if EXTEND else last) - key
    row = gl.load(prefix_indices + begin + key + column, mask=in_pool, other=-1)
    if EXTEND:
        own = column >= prefix - key
        at = extend_indices + own_begin - prefix + key + column
        row = gl.where(in_pool, row, gl.load(at, mask=own & (column < last - key), other=-1))
    return row


@gluon.jit
def _scorer(
    prefix_indices, prefix_indptr, extend_indices, extend_indptr, n_items, splits, scale, q_smem, kv_smem, p_smem,
    notes, q_full, q_empty, full, a_full, p_full, p_empty, H: gl.constexpr, EXTEND: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """Weights ``p_smem [HEADS, KEYS]`` and in ``notes [2, HEADS]`` what accumulators shall do, stage by stage."""
    s_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, KEYS, 16])
    rows: gl.constexpr = gl.SliceLayout(1, s_layout)
    column = gl.arange(0, KEYS, layout=gl.SliceLayout(0, s_layout)) & ~6  # within that of the lane
    scale_log2 = scale * LOG2E
    count = 0
    q_count = 0
    messages = 0
    for item in range(gl.program_id(0), n_items, gl.num_programs(0)):
        _, _, _, begin, prefix, own_begin, first, last, stages = _item(
            item, splits, prefix_indptr, extend_indptr, H, EXTEND
        )
        m = gl.full([HEADS], LEAST, gl.float32, layout=rows)
        norm = gl.zeros([HEADS], gl.float32, layout=rows)
        if stages > 0:
            mbarrier.wait(q_full, q_count & 1)
            for j in range(stages):
                stage = count % STAGES
                mbarrier.wait(full.index(stage), count // STAGES & 1)
                fence_async_shared()
                s = gl.zeros([HEADS, KEYS], gl.float32, layout=s_layout)
                q = q_smem.index(count >> 30)  # 0, in a way that keeps 32 matrix descriptors out of registers
                s = warpgroup_mma(q, kv_smem.index(stage).permute((1, 0)), s, use_acc=False, is_async=True)
                row = _rows_from(  # here, since the fence would wait for it
                    prefix_indices, extend_indices, begin, prefix, own_begin, first + j * KEYS, column, last, EXTEND
                )
                s = warpgroup_mma_wait(0, deps=[s])
                if j == stages - 1:
                    mbarrier.arrive(q_empty, count=1)
                s = gl.where((row >= 0)[None, :], s, NEGATIVE)
                m_new = gl.maximum(m, gl.max(s, 1) * scale_log2)
                alpha = gl.exp2(m - m_new)
                mbarrier.wait(p_empty, (messages & 1) ^ 1)
                notes.index(0).store(alpha)
                mbarrier.arrive(a_full, count=1)
                mbarrier.wait(p_empty, (messages & 1) ^ 1)  # is over, and keeps what follows from going first
                p = gl.exp2(s * scale_log2 - m_new[:, None])
                p_smem.store(p.to(p_smem.dtype))
                mbarrier.arrive(p_full, count=1)
                norm = norm * alpha + gl.sum(p, 1)
                m = m_new
                messages += 1
                count += 1
            mbarrier.wait(p_empty, (messages & 1) ^ 1)
            notes.index(0).store(m)
            notes.index(1).store(norm)
            mbarrier.arrive(a_full, count=1)
            mbarrier.arrive(p_full, count=1)
            messages += 1
            q_count += 1


@gluon.jit
def _accumulator(
    half: gl.constexpr, sink_ptr, out_ptr, acc_ptr, stats_ptr, prefix_indptr, extend_indptr, n_items, splits,
    out_stride_t, out_stride_h, kv_smem, p_smem, notes, full, empty, a_full, p_full, p_empty,
    H: gl.constexpr, PARTS: gl.constexpr, EXTEND: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """Results of value dims ``half * HALF`` to ``(half + 1) * HALF``."""
    o_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, COLUMNS, 16])
    rows: gl.constexpr = gl.SliceLayout(1, o_layout)
    count = 0
    messages = 0
    for item in range(gl.program_id(0), n_items, gl.num_programs(0)):
        token, split, head, _, _, _, _, _, stages = _item(item, splits, prefix_indptr, extend_indptr, H, EXTEND)
        m = gl.full([HEADS], NEGATIVE, gl.float32, layout=rows)
        norm = gl.zeros([HEADS], gl.float32, layout=rows)
        acc = gl.zeros([HEADS, HALF], gl.float32, layout=o_layout)
        if stages > 0:
            for _ in range(stages):
                stage = count % STAGES
                mbarrier.wait(a_full, messages & 1)
                acc = acc * notes.index(0).load(rows)[:, None]
                mbarrier.wait(full.index(stage), count // STAGES & 1)
                mbarrier.wait(p_full, messages & 1)
                fence_async_shared()
                values = kv_smem.index(stage).slice(half * HALF, HALF, dim=1)
                acc = warpgroup_mma(p_smem, values, acc, is_async=True)
                acc = warpgroup_mma_wait(0, deps=[acc])
                mbarrier.arrive(empty.index(stage), count=1)
                mbarrier.arrive(p_empty, count=1)
                messages += 1
                count += 1
            mbarrier.wait(a_full, messages & 1)
            mbarrier.wait(p_full, messages & 1)
            m = notes.index(0).load(rows)
            norm = notes.index(1).load(rows)
            mbarrier.arrive(p_empty, count=1)
            messages += 1
        if not PARTS:
            _put_result(acc, m, norm, half, token, head, sink_ptr, out_ptr, out_stride_t, out_stride_h, H)
        else:
            part = token.to(gl.int64) * splits + split
            _put_part(acc, m, norm, half, part, stages, head, acc_ptr, stats_ptr, o_layout, H)
