"""NVIDIA's fp4 matrix-vector kernels with their weights on the way to shared memory (Gluon): see ``_nvidia.py``.

A program asks for ``STAGES - 1`` steps of words and scales ahead (``cp.async``), so that what is in flight takes no
registers, and its lanes read a step back as ``_nvidia.py`` hands it to ``mma.sync``: sums come out the same, bit for
bit. Stages of even and odd steps are two rings, so that the compiler sees that a step's reads and the copies that it
begins do not meet: one barrier a step. Activations lie in shared memory as the right operand wants them, lifted and
in pairs (k, k + 4). The lanes that have none of a word's multiply it by 0: the ALU has enough to do with the codes.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from dsv4_kernels.jit import clamped_swiglu
from dsv4_kernels.moe_gemm._nvidia import ROWS, _lifted, _out_rows, _right, _scale, _step

SWIZZLED = gl.constexpr(gl.SwizzledSharedLayout(16, 1, 2, [1, 0]))
PLAIN = gl.constexpr(gl.SwizzledSharedLayout(1, 1, 1, [1, 0]))

_TIMES = gl.constexpr("mul.lo.u32 $0, $4, $8; mul.lo.u32 $1, $5, $9; mul.lo.u32 $2, $6, $10; mul.lo.u32 $3, $7, $11;")


@gluon.constexpr_function
def _lanes(warps):
    """How a step's words ``[8, BLOCK_G, 4]`` lie in lanes."""
    return gl.BlockedLayout([1, 1, 4], [8, 4, 1], [1, warps, 1], [2, 1, 0])


@gluon.constexpr_function
def _copied(warps, block_g):
    """How words ``[rows, 4 BLOCK_G]`` are copied: runs of rows as long as a step has them, 16 bytes a lane."""
    across = min(block_g, 32)
    return gl.BlockedLayout([1, 4], [32 // across, across], [warps, 1], [1, 0])


@gluon.jit
def _read(stage, piece: gl.constexpr, BLOCK_G: gl.constexpr):
    """Words of 8 rows of a stage, as the left operand takes them."""
    flat: gl.constexpr = gl.BlockedLayout([1, 4], [8, 4], [1, gl.num_warps()], [1, 0])
    words = stage.slice(8 * piece, 8, dim=0).load(flat).reshape([8, BLOCK_G, 4])
    return gl.convert_layout(words, _lanes(gl.num_warps()), assert_trivial=True)


@gluon.jit
def _operand(xs, word: gl.constexpr, own):
    """The right operand of code word ``word``, out of activations ``xs [BLOCK_G, 16]``: 0 where ``own`` is."""
    L: gl.constexpr = _lanes(gl.num_warps())
    x = gl.expand_dims(xs.slice(4 * word, 4, dim=1).load(gl.SliceLayout(0, L)), 0)
    return gl.inline_asm_elementwise(
        _TIMES, "=&r,=&r,=&r,=&r,r,r,r,r,r,r,r,r", [x, own], dtype=gl.int32, is_pure=True, pack=4
    )


@gluon.jit
def _tile(words, powers, at: gl.constexpr, BLOCK_G: gl.constexpr):
    """Of 16 rows of a stage, from row ``16 at`` on: words of the upper and of the lower 8, and their scales."""
    L2: gl.constexpr = gl.SliceLayout(2, _lanes(gl.num_warps()))
    upper, lower = _read(words, 2 * at, BLOCK_G), _read(words, 2 * at + 1, BLOCK_G)
    return upper, lower, powers.slice(16 * at, 8, dim=0).load(L2), powers.slice(16 * at + 8, 8, dim=0).load(L2)


@gluon.jit
def _add(acc, tile, x, factor):
    """``acc`` and the products of a tile with the right operands ``x``, with its scales times ``factor``."""
    return _step(
        acc, tile[0], tile[1], x[0], x[1], x[2], x[3], _scale(tile[2], factor, acc), _scale(tile[3], factor, acc)
    )  # fmt: skip


@gluon.jit
def _operands(xs, own):
    """The right operands of the four words of a lane's group."""
    return _operand(xs, 0, own), _operand(xs, 1, own), _operand(xs, 2, own), _operand(xs, 3, own)


@gluon.jit
def _own(BLOCK_G: gl.constexpr):
    """1 where a lane has its word's column of the right operand, 0 elsewhere."""
    L: gl.constexpr = _lanes(gl.num_warps())
    i = gl.arange(0, 8, layout=gl.SliceLayout(1, gl.SliceLayout(2, L)))[:, None]
    group = gl.arange(0, BLOCK_G, layout=gl.SliceLayout(0, gl.SliceLayout(2, L)))[None, :]
    return gl.expand_dims((i == group % 4 * 2).to(gl.int32), 2).broadcast_to([8, BLOCK_G, 4])


@gluon.jit
def _ask(words, powers, w_at, s_at, left, wc, sc):
    """Begin to copy words and scales of a step from pointers on, zeros from group ``left`` of the step on."""
    async_copy.async_copy_global_to_shared(words, w_at, mask=wc // 4 < left)
    async_copy.async_copy_global_to_shared(powers, s_at, mask=sc * 4 < left)


@gluon.jit
def _stage(x_ptr, groups, xs, ROOM: gl.constexpr, BLOCK_G: gl.constexpr):
    """Activations ``x_ptr`` of ``groups`` groups into ``xs [ROOM, BLOCK_G, 16]``, as the right operand wants them."""
    L: gl.constexpr = gl.BlockedLayout([1, 4], [32, 1], [gl.num_warps(), 1], [1, 0])
    flat = xs._reinterpret(gl.int32, [ROOM * BLOCK_G, 16], PLAIN)
    group = gl.arange(0, ROOM * BLOCK_G, layout=gl.SliceLayout(1, L))[:, None]
    word = gl.arange(0, 4, layout=gl.SliceLayout(0, L))[None, :]
    for at in gl.static_range(0, 16, 4):
        mask = (group < groups) & (word >= 0)
        flat.slice(at, 4, dim=1).store(_right(x_ptr, group * 16 + at + word, mask))


@gluon.jit
def _gate_up_step(
    gate, up, step, w_at, s_at, here, there, xs, own, groups, wc, sc, BLOCK_G: gl.constexpr, HALF: gl.constexpr
):  # fmt: skip
    """One step out of the ring ``here``, while step ``step + 2 HALF - 1`` is asked for into the ring ``there``."""
    async_copy.wait_group(2 * HALF - 2)
    at, then = step // 2 % HALF, step + 2 * HALF - 1
    powers = here[1].index(at)._reinterpret(gl.uint8, [32, BLOCK_G], PLAIN)
    gates, ups = _tile(here[0].index(at), powers, 0, BLOCK_G), _tile(here[0].index(at), powers, 1, BLOCK_G)
    slot = then // 2 % HALF
    _ask(there[0].index(slot), there[1].index(slot), w_at, s_at, groups - then * BLOCK_G, wc, sc)
    async_copy.commit_group()
    x = _operands(xs.index(step), own)
    gate, up = _add(gate, gates, x, 1.0), _add(up, ups, x, 1.0)
    return gate, up, w_at + BLOCK_G * 4, s_at + BLOCK_G // 4


@gluon.jit
def _gate_up_ring_kernel(
    x_ptr, experts_ptr, w13_ptr, scales_ptr, h_ptr, inter, groups, slots, x_stride, experts_stride, limit,
    PDL: gl.constexpr, LIFTED: gl.constexpr, ROOM: gl.constexpr, BLOCK_G: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """As ``_gate_up_lanes_kernel`` with one warp's rows a program; ``groups`` is a multiple of four.

    ``LIFTED``: ``h`` as ``_down_ring_kernel`` reads it. ``ROOM``: no fewer steps, and even: a power of two.
    """
    WARPS: gl.constexpr = gl.num_warps()
    L: gl.constexpr = _lanes(WARPS)
    LW: gl.constexpr = _copied(WARPS, BLOCK_G)
    LS: gl.constexpr = gl.BlockedLayout([1, 1], [8, 4], [WARPS, 1], [1, 0])
    HALF: gl.constexpr = STAGES // 2
    words0 = gl.allocate_shared_memory(gl.int32, [HALF, 32, BLOCK_G * 4], SWIZZLED)
    words1 = gl.allocate_shared_memory(gl.int32, [HALF, 32, BLOCK_G * 4], SWIZZLED)
    powers0 = gl.allocate_shared_memory(gl.int32, [HALF, 32, BLOCK_G // 4], PLAIN)
    powers1 = gl.allocate_shared_memory(gl.int32, [HALF, 32, BLOCK_G // 4], PLAIN)
    xs = gl.allocate_shared_memory(gl.int32, [ROOM, BLOCK_G, 16], PLAIN)
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    pair = gl.program_id(1)
    token, slot = pair // slots, pair % slots
    expert = gl.load(experts_ptr + token * experts_stride + slot).to(gl.int64)
    first = gl.program_id(0) * ROWS
    at = expert * (2 * inter) + first
    i = gl.arange(0, 32, layout=gl.SliceLayout(1, LW))[:, None]
    wc = gl.arange(0, BLOCK_G * 4, layout=gl.SliceLayout(0, LW))[None, :]
    w_at = w13_ptr + at * (groups * 4) + ((i % ROWS + i // ROWS * inter) * (groups * 4) + wc)
    i = gl.arange(0, 32, layout=gl.SliceLayout(1, LS))[:, None]
    sc = gl.arange(0, BLOCK_G // 4, layout=gl.SliceLayout(0, LS))[None, :]
    scales = scales_ptr.to(gl.pointer_type(gl.int32), bitcast=True)
    s_at = scales + at * (groups // 4) + ((i % ROWS + i // ROWS * inter) * (groups // 4) + sc)
    for s in gl.static_range(STAGES - 1):
        if s % 2 == 0:
            _ask(words0.index(s // 2), powers0.index(s // 2), w_at, s_at, groups - s * BLOCK_G, wc, sc)
        else:
            _ask(words1.index(s // 2), powers1.index(s // 2), w_at, s_at, groups - s * BLOCK_G, wc, sc)
        async_copy.commit_group()
        w_at += BLOCK_G * 4
        s_at += BLOCK_G // 4
    _stage(x_ptr + token.to(gl.int64) * x_stride, groups, xs, ROOM, BLOCK_G)
    gate = gl.zeros([8, BLOCK_G, 4], gl.float32, layout=L)
    up = gl.zeros([8, BLOCK_G, 4], gl.float32, layout=L)
    own = _own(BLOCK_G)
    even, odd = (words0, powers0), (words1, powers1)
    for step in range(0, gl.cdiv(groups, BLOCK_G), 2):
        gate, up, w_at, s_at = _gate_up_step(
            gate, up, step, w_at, s_at, even, odd, xs, own, groups, wc, sc, BLOCK_G, HALF
        )  # fmt: skip
        gate, up, w_at, s_at = _gate_up_step(
            gate, up, step + 1, w_at, s_at, odd, even, xs, own, groups, wc, sc, BLOCK_G, HALF
        )  # fmt: skip
    async_copy.wait_group(0)
    y = clamped_swiglu(gl.sum(gate, axis=1), gl.sum(up, axis=1), limit).to(h_ptr.dtype.element_ty)
    row, kept = _out_rows(1, L)
    if LIFTED:
        y, row = _lifted(y, row)
    gl.store(h_ptr + pair.to(gl.int64) * inter + first + row, y, mask=kept)
