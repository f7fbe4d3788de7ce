"""NVIDIA's fp4 matrix-vector kernel of ``w2`` with its weights on the way to shared memory: see ``_ring.py``."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from dsv4_kernels.moe_gemm._nvidia import ROWS, _out_rows
from dsv4_kernels.moe_gemm._ring import PLAIN, SWIZZLED, _add, _ask, _copied, _lanes, _operands, _own, _tile


@gluon.jit
def _of_slots(ptr, first, lane, GROUPS: gl.constexpr, ALL: gl.constexpr, WHOLE: gl.constexpr):
    """What ``ptr`` holds for the slots of a step's groups ``first + lane``; ``WHOLE``: of its one slot."""
    flat = gl.to_tensor(first) if WHOLE else lane + first
    return gl.load(ptr + flat // GROUPS, mask=flat < ALL, other=0, cache_modifier=".cg")


@gluon.jit
def _down_ask(
    words, powers, chosen, first, bases, lanes, d, GROUPS: gl.constexpr, ALL: gl.constexpr, WHOLE: gl.constexpr
):  # fmt: skip
    """Begin to copy words and scales of a step: from group ``first`` of all slots' on, of the experts ``chosen``.

    ``bases``: ``w2`` and its scales, both as int32. ``lanes``: rows and columns of both copies.
    """
    wi, wc, si, sc = lanes
    if WHOLE:
        at = chosen[0].to(gl.int64) * d * GROUPS + first % GROUPS
        w_at, s_at = (bases[0] + at * 4) + (wi * (GROUPS * 4) + wc), (bases[1] + at // 4) + (si * (GROUPS // 4) + sc)
    else:
        w_at = bases[0] + ((chosen[0].to(gl.int64) * d + wi) * GROUPS + (wc // 4 + first) % GROUPS) * 4 + wc % 4
        s_at = bases[1] + (chosen[1].to(gl.int64) * d + si) * (GROUPS // 4) + (sc + first // 4) % (GROUPS // 4)
    _ask(words, powers, w_at, s_at, ALL - first, wc, sc)


@gluon.jit
def _ask_h(xs, h_at, first, ALL: gl.constexpr, BLOCK_G: gl.constexpr):
    """Begin to copy a step's activations."""
    L: gl.constexpr = gl.BlockedLayout([1, 4], [8, 4], [gl.num_warps(), 1], [1, 0])
    group = first + gl.arange(0, BLOCK_G, layout=gl.SliceLayout(1, L))[:, None]
    word = gl.arange(0, 16, layout=gl.SliceLayout(0, L))[None, :]
    async_copy.async_copy_global_to_shared(xs, h_at + (group * 16 + word), mask=(group < ALL) & (word >= 0))


@gluon.jit
def _down_step(
    acc, more, step, chosen, weight, here, there, bases, lanes, experts_at, weights_at, h_at, own, d,
    GROUPS: gl.constexpr, ALL: gl.constexpr, WHOLE: gl.constexpr, WARP_ROWS: gl.constexpr, BLOCK_G: gl.constexpr,
    HALF: gl.constexpr,
):  # fmt: skip
    """As ``_gate_up_step``; the experts of the next step to be asked for are looked up here, and the next weight."""
    async_copy.wait_group(2 * HALF - 2)
    at, then = step // 2 % HALF, step + 2 * HALF - 1
    powers = here[1].index(at)._reinterpret(gl.uint8, [16 * WARP_ROWS, BLOCK_G], PLAIN)
    tile = _tile(here[0].index(at), powers, 0, BLOCK_G)
    if WARP_ROWS == 2:
        lower = _tile(here[0].index(at), powers, 1, BLOCK_G)
    x = _operands(here[2].index(at), own)
    slot = then // 2 % HALF
    _down_ask(
        there[0].index(slot), there[1].index(slot), chosen, then * BLOCK_G, bases, lanes, d, GROUPS, ALL, WHOLE
    )  # fmt: skip
    _ask_h(there[2].index(slot), h_at, then * BLOCK_G, ALL, BLOCK_G)
    async_copy.commit_group()
    chosen = _experts(experts_at, (then + 1) * BLOCK_G, lanes, GROUPS, ALL, WHOLE)
    next_weight = _weight(weights_at, (step + 1) * BLOCK_G, GROUPS, ALL, WHOLE, BLOCK_G)
    acc = _add(acc, tile, x, weight)
    if WARP_ROWS == 2:
        more = _add(more, lower, x, weight)
    return acc, more, chosen, next_weight


@gluon.jit
def _experts(experts_at, first, lanes, GROUPS: gl.constexpr, ALL: gl.constexpr, WHOLE: gl.constexpr):
    """Experts of a step's words and of its scales."""
    of_words = _of_slots(experts_at, first, lanes[1] // 4, GROUPS, ALL, WHOLE)
    of_scales = of_words
    if not WHOLE:
        of_scales = _of_slots(experts_at, first, lanes[3] * 4, GROUPS, ALL, WHOLE)
    return of_words, of_scales


@gluon.jit
def _weight(weights_at, first, GROUPS: gl.constexpr, ALL: gl.constexpr, WHOLE: gl.constexpr, BLOCK_G: gl.constexpr):
    """Weights of a step's groups."""
    L2: gl.constexpr = gl.SliceLayout(2, _lanes(gl.num_warps()))
    lane = gl.arange(0, BLOCK_G, layout=gl.SliceLayout(0, L2))[None, :]
    return _of_slots(weights_at, first, lane, GROUPS, ALL, WHOLE)


@gluon.jit
def _down_ring_kernel(
    h_ptr, experts_ptr, weights_ptr, w2_ptr, scales_ptr, out_ptr, d, experts_stride, weights_stride, out_stride,
    GROUPS: gl.constexpr, SLOTS: gl.constexpr, PDL: gl.constexpr, WARP_ROWS: gl.constexpr, BLOCK_G: gl.constexpr,
    STAGES: gl.constexpr,
):  # fmt: skip
    """As ``_down_lanes_kernel``, with 16 or 32 rows a program, both by every warp; ``h`` lifted and in pairs.

    ``GROUPS`` is a multiple of four. With ``PDL`` the first ``STAGES - 1`` steps of weights are on their way while the
    kernel that writes ``h`` still runs.
    """
    WARPS: gl.constexpr = gl.num_warps()
    LW: gl.constexpr = _copied(WARPS, BLOCK_G)
    LS: gl.constexpr = gl.BlockedLayout([1, 1], [8, 4], [WARPS, 1], [1, 0])
    ALL: gl.constexpr = GROUPS * SLOTS
    STEPS: gl.constexpr = (ALL + BLOCK_G - 1) // BLOCK_G
    HALF: gl.constexpr = STAGES // 2
    WHOLE: gl.constexpr = GROUPS % BLOCK_G == 0
    TILE: gl.constexpr = ROWS * WARP_ROWS
    words0 = gl.allocate_shared_memory(gl.int32, [HALF, TILE, BLOCK_G * 4], SWIZZLED)
    words1 = gl.allocate_shared_memory(gl.int32, [HALF, TILE, BLOCK_G * 4], SWIZZLED)
    powers0 = gl.allocate_shared_memory(gl.int32, [HALF, TILE, BLOCK_G // 4], PLAIN)
    powers1 = gl.allocate_shared_memory(gl.int32, [HALF, TILE, BLOCK_G // 4], PLAIN)
    xs0 = gl.allocate_shared_memory(gl.int32, [HALF, BLOCK_G, 16], PLAIN)
    xs1 = gl.allocate_shared_memory(gl.int32, [HALF, BLOCK_G, 16], PLAIN)
    token = gl.program_id(1)
    row = gl.program_id(0) * TILE
    experts_at, weights_at = experts_ptr + token * experts_stride, weights_ptr + token * weights_stride
    h_at = h_ptr + token.to(gl.int64) * (ALL * 16)
    lanes = (
        row + gl.arange(0, TILE, layout=gl.SliceLayout(1, LW))[:, None],
        gl.arange(0, BLOCK_G * 4, layout=gl.SliceLayout(0, LW))[None, :],
        row + gl.arange(0, TILE, layout=gl.SliceLayout(1, LS))[:, None],
        gl.arange(0, BLOCK_G // 4, layout=gl.SliceLayout(0, LS))[None, :],
    )
    bases = (w2_ptr, scales_ptr.to(gl.pointer_type(gl.int32), bitcast=True))
    even, odd = (words0, powers0, xs0), (words1, powers1, xs1)
    chosen = _experts(experts_at, 0, lanes, GROUPS, ALL, WHOLE)
    for s in gl.static_range(STAGES - 1):
        later = _experts(experts_at, (s + 1) * BLOCK_G, lanes, GROUPS, ALL, WHOLE)
        words, powers = (words0, powers0) if s % 2 == 0 else (words1, powers1)
        _down_ask(words.index(s // 2), powers.index(s // 2), chosen, s * BLOCK_G, bases, lanes, d, GROUPS, ALL, WHOLE)
        chosen = later
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    for s in gl.static_range(STAGES - 1):  # a group each; the first has all words and scales so far, too
        _ask_h((xs0 if s % 2 == 0 else xs1).index(s // 2), h_at, s * BLOCK_G, ALL, BLOCK_G)
        async_copy.commit_group()
    acc = gl.zeros([8, BLOCK_G, 4], gl.float32, layout=_lanes(WARPS))
    more = acc
    own = _own(BLOCK_G)
    weight = _weight(weights_at, 0, GROUPS, ALL, WHOLE, BLOCK_G)
    for step in range(0, STEPS - STEPS % 2, 2):
        acc, more, chosen, weight = _down_step(
            acc, more, step, chosen, weight, even, odd, bases, lanes, experts_at, weights_at, h_at, own, d,
            GROUPS, ALL, WHOLE, WARP_ROWS, BLOCK_G, HALF,
        )  # fmt: skip
        acc, more, chosen, weight = _down_step(
            acc, more, step + 1, chosen, weight, odd, even, bases, lanes, experts_at, weights_at, h_at, own, d,
            GROUPS, ALL, WHOLE, WARP_ROWS, BLOCK_G, HALF,
        )  # fmt: skip
    if STEPS % 2 == 1:
        acc, more, chosen, weight = _down_step(
            acc, more, STEPS - 1, chosen, weight, even, odd, bases, lanes, experts_at, weights_at, h_at, own, d,
            GROUPS, ALL, WHOLE, WARP_ROWS, BLOCK_G, HALF,
        )  # fmt: skip
    async_copy.wait_group(0)
    out_row, kept = _out_rows(1, _lanes(WARPS))
    at = out_ptr + token.to(gl.int64) * out_stride + row + out_row
    gl.store(at, gl.sum(acc, axis=1), mask=kept)
    if WARP_ROWS == 2:
        gl.store(at + ROWS, gl.sum(more, axis=1), mask=kept)
