"""Hyper-connections of many tokens on Hopper, their streams read once (Gluon).

The programs of a group share the columns: ``DIMS`` of each stream are a program's slice, and its part of ``fn`` stays
in registers. A group goes through its tiles of ``TOK`` tokens side by side. A tile's streams stay in shared memory
until the sums of all slices are known; then each program collapses its columns. Warps have roles, and a ring of stages
between them, so that tiles are loaded, multiplied and collapsed at once.

A program waits for the others of its group alone, and those are started together: the numbers of their programs are
neighbours. Groups that are not complete yet are one a launch at most, so a device that is shared makes no knot of it.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from dsv4_kernels.mhc_pre_post._once_parts import (
    DIMS,
    FOLDED,
    FOUR_WARPS,
    ONE_WARP,
    PART,
    PRODUCT,
    RECORD,
    SQUARES,
    TOK,
    TOKENS,
    _collapse_tile,
    _flat,
    _fn_fragment,
    _fn_places,
    _folded,
    _mixes_of_tile,
    _reducer,
    _squares,
    _until,
)
from dsv4_kernels.mhc_pre_post._once_spread import _load_and_collapse, _spread


@gluon.jit
def _barriers(N: gl.constexpr):
    """``N`` barriers for one arrival a phase."""
    barriers = gl.allocate_shared_memory(gl.int64, [N, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(N):
        mbarrier.init(barriers.index(i), count=1)
    return barriers


@gluon.jit
def _loader(x_desc, tiles, ring, full, empty, SLICES: gl.constexpr, STAGES: gl.constexpr):
    groups = gl.num_programs(0) // SLICES
    col = gl.program_id(0) % SLICES * DIMS
    count = 0
    for tile in range(gl.program_id(0) // SLICES, tiles, groups):
        stage = count % STAGES
        mbarrier.wait(empty.index(stage), (count // STAGES & 1) ^ 1)
        mbarrier.expect(full.index(stage), 4 * TOK * DIMS * 2)
        tma.async_copy_global_to_shared(x_desc, [0, tile * TOK, col], full.index(stage), ring.index(stage))
        count = count + 1


@gluon.jit
def _products(
    fn_ptr, sums, to, n_tokens, tiles, eps, smem, bars,
    HALF: gl.constexpr, SPREAD: gl.constexpr, ITERS: gl.constexpr, SLICES: gl.constexpr, STAGES: gl.constexpr,
    MIXES: gl.constexpr,
):  # fmt: skip
    """Sums of streams ``2 * HALF`` and the next, with ``SPREAD`` without their squares. Half 0 adds those of half 1,
    leaves the slice's record, and counts it; without ``SPREAD`` it also makes the mixes of the group's last tiles.
    """
    groups = gl.num_programs(0) // SLICES
    slice_ = gl.program_id(0) % SLICES
    first = gl.program_id(0) // SLICES
    d: gl.constexpr = SLICES * DIMS
    partial_ptr, counter_ptr = sums[0], sums[1]
    ring, half_smem, square_smem = smem
    full, half_full, half_empty = bars
    place = _fn_places(fn_ptr + (slice_ * DIMS + 2 * HALF * d), d, MIXES)
    a0 = _fn_fragment(place)
    a1 = _fn_fragment(place + PART)
    a2 = _fn_fragment(place + 2 * PART)
    a3 = _fn_fragment(place + 3 * PART)
    place += d
    gl.thread_barrier()
    a4 = _fn_fragment(place)
    a5 = _fn_fragment(place + PART)
    a6 = _fn_fragment(place + 2 * PART)
    a7 = _fn_fragment(place + 3 * PART)
    count = 0
    for tile in range(first, tiles, groups):
        stage = count % STAGES
        mbarrier.wait(full.index(stage), count // STAGES & 1)
        x0 = _flat(ring, stage).slice(2 * HALF * TOK, TOK, dim=0)
        x1 = _flat(ring, stage).slice((2 * HALF + 1) * TOK, TOK, dim=0)
        acc = gl.zeros([64, TOK], gl.float32, layout=PRODUCT)
        acc = warpgroup_mma(a0, x0.slice(0 * PART, PART, dim=1).permute((1, 0)), acc, use_acc=False, is_async=True)
        acc = warpgroup_mma(a1, x0.slice(1 * PART, PART, dim=1).permute((1, 0)), acc, is_async=True)
        acc = warpgroup_mma(a2, x0.slice(2 * PART, PART, dim=1).permute((1, 0)), acc, is_async=True)
        acc = warpgroup_mma(a3, x0.slice(3 * PART, PART, dim=1).permute((1, 0)), acc, is_async=True)
        acc = warpgroup_mma(a4, x1.slice(0 * PART, PART, dim=1).permute((1, 0)), acc, is_async=True)
        acc = warpgroup_mma(a5, x1.slice(1 * PART, PART, dim=1).permute((1, 0)), acc, is_async=True)
        acc = warpgroup_mma(a6, x1.slice(2 * PART, PART, dim=1).permute((1, 0)), acc, is_async=True)
        acc = warpgroup_mma(a7, x1.slice(3 * PART, PART, dim=1).permute((1, 0)), acc, is_async=True)
        squares = gl.zeros([TOK], gl.float32, layout=TOKENS)
        if not SPREAD:
            squares = _squares(x0) + _squares(x1)
        acc = warpgroup_mma_wait(0, deps=[acc])
        mixes = _folded(acc)
        at = count & 1
        if HALF == 1:
            mbarrier.wait(half_empty.index(at), (count // 2 & 1) ^ 1)
            half_smem.index(at).store(mixes)
            if not SPREAD:
                square_smem.index(at).store(squares)
            mbarrier.arrive(half_full.index(at), count=1)
        else:
            mbarrier.wait(half_full.index(at), count // 2 & 1)
            mixes += half_smem.index(at).load(FOLDED)
            if not SPREAD:
                squares += square_smem.index(at).load(TOKENS)
            mbarrier.arrive(half_empty.index(at), count=1)
            record = partial_ptr + (tile * SLICES + slice_) * RECORD
            mix = gl.arange(0, 32, layout=gl.SliceLayout(1, FOLDED))
            lane = gl.arange(0, TOK, layout=gl.SliceLayout(0, FOLDED))
            mask = (mix < MIXES)[:, None] & (lane >= 0)[None, :]
            gl.store(record + mix[:, None] * TOK + lane[None, :], mixes, mask=mask)
            if not SPREAD:
                gl.store(record + SQUARES * TOK + gl.arange(0, TOK, layout=TOKENS), squares)
            gl.thread_barrier()
            gl.atomic_add(counter_ptr + tile, 1, sem="release", scope="gpu")
        count = count + 1
    if HALF == 0 and not SPREAD:
        _last_mixes(sums, to, n_tokens, count, eps, SLICES, ITERS)


@gluon.jit
def _last_mixes(sums, to, n_tokens, count, eps, SLICES: gl.constexpr, ITERS: gl.constexpr):
    """``post`` and ``comb`` of the last of the group's ``count`` tiles, by four warps that have nothing else to do."""
    groups = gl.num_programs(0) // SLICES
    partial_ptr, counter_ptr, base_ptr, scale_ptr = sums
    for at in range(gl.maximum(count - SLICES, 0), count):
        if at % SLICES == gl.program_id(0) % SLICES:
            tile = gl.program_id(0) // SLICES + at * groups
            _until(counter_ptr + tile, SLICES)
            _mixes_of_tile(
                partial_ptr, base_ptr, scale_ptr, to[0], to[1], n_tokens, tile, SLICES * DIMS, eps[0], eps[1],
                FOUR_WARPS, 8 if SLICES % 8 == 0 else 4, SLICES, ITERS,
            )  # fmt: skip


@gluon.jit
def _mixes(sums, to, n_tokens, tiles, eps, SLICES: gl.constexpr, ITERS: gl.constexpr):
    """``post`` and ``comb``: one program of a group a tile, in turn, but for the last tiles."""
    groups = gl.num_programs(0) // SLICES
    slice_ = gl.program_id(0) % SLICES
    first = gl.program_id(0) // SLICES
    partial_ptr, counter_ptr, base_ptr, scale_ptr = sums
    count = 0
    for tile in range(first, tiles - SLICES * groups, groups):
        if count % SLICES == slice_:
            _until(counter_ptr + tile, SLICES)
            _mixes_of_tile(
                partial_ptr, base_ptr, scale_ptr, to[0], to[1], n_tokens, tile, SLICES * DIMS, eps[0], eps[1], ONE_WARP,
                4, SLICES, ITERS,
            )  # fmt: skip
        count = count + 1


@gluon.jit
def _collapse(
    out_ptr, n_tokens, tiles, out_stride, ring, w_smem, full, ready, empty, SLICES: gl.constexpr, STAGES: gl.constexpr
):
    groups = gl.num_programs(0) // SLICES
    count = 0
    for tile in range(gl.program_id(0) // SLICES, tiles, groups):
        stage = count % STAGES
        mbarrier.wait(full.index(stage), count // STAGES & 1)
        mbarrier.wait(ready.index(stage), count // STAGES & 1)
        _collapse_tile(
            w_smem.index(stage * 4).load(TOKENS), w_smem.index(stage * 4 + 1).load(TOKENS),
            w_smem.index(stage * 4 + 2).load(TOKENS), w_smem.index(stage * 4 + 3).load(TOKENS),
            out_ptr, n_tokens, tile, out_stride, ring, stage, SLICES,
        )  # fmt: skip
        mbarrier.arrive(empty.index(stage), count=1)
        count = count + 1


@gluon.jit
def _leave_zero(counter_ptr, tiles, SLICES: gl.constexpr):
    """The last program of a group puts its counters back."""
    groups = gl.num_programs(0) // SLICES
    group = gl.program_id(0) // SLICES
    gl.thread_barrier()
    done = counter_ptr + tiles + group
    if gl.atomic_add(done, 1, sem="acq_rel", scope="gpu") == SLICES - 1:
        gl.store(done, 0)
        for tile in range(group, tiles, groups):
            gl.store(counter_ptr + tile, 0)


@gluon.jit(do_not_specialize=["n_tokens"])
def mhc_once_kernel(
    x_desc, y_desc, post_desc, comb_desc, x_ptr, fn_ptr, base_ptr, scale_ptr, out_ptr, new_post_ptr, new_comb_ptr,
    partial_ptr, counter_ptr, n_tokens, out_stride, rms_eps, hc_eps,
    SPREAD: gl.constexpr, MIXES: gl.constexpr, ITERS: gl.constexpr, SLICES: gl.constexpr, PAD: gl.constexpr,
    STAGES: gl.constexpr, PRODUCT_REGS: gl.constexpr, OTHER_REGS: gl.constexpr,
):  # fmt: skip
    """Streams ``x [n_tokens, 4, SLICES * DIMS]``, with ``SPREAD`` new ones in their place first; four slices and more.

    ``partial [tiles, SLICES, 32, TOK]``: scratch; ``PAD``: a power of two, at least 8 and ``SLICES``. ``counter``: one
    for each tile and one for each group, zero before and after. Grid: groups of ``SLICES`` programs.
    """
    tiles = gl.cdiv(n_tokens, TOK)
    dtype: gl.constexpr = out_ptr.dtype.element_ty
    plain: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    ring = gl.allocate_shared_memory(dtype, [STAGES, 4, TOK, DIMS], gl.NVMMASharedLayout(128, 16, 3))
    half_smem = gl.allocate_shared_memory(gl.float32, [2, 32, TOK], gl.SwizzledSharedLayout(1, 1, 1, [1, 0]))
    square_smem = gl.allocate_shared_memory(gl.float32, [2, TOK], plain)
    full, ready, empty = _barriers(STAGES), _barriers(STAGES), _barriers(STAGES)
    half_full, half_empty = _barriers(2), _barriers(2)
    fence_async_shared()
    sums = (partial_ptr, counter_ptr, base_ptr, scale_ptr)
    to = (new_post_ptr, new_comb_ptr)
    eps = (rms_eps, hc_eps)
    smem = (ring, half_smem, square_smem)
    if SPREAD:
        y_ring = gl.allocate_shared_memory(dtype, [STAGES, TOK, DIMS], gl.NVMMASharedLayout(128, 16, 2))
        post_ring = gl.allocate_shared_memory(gl.float32, [STAGES, TOK, 4], gl.NVMMASharedLayout(0, 32, 2))
        comb_ring = gl.allocate_shared_memory(gl.float32, [STAGES, TOK, 16], gl.NVMMASharedLayout(64, 32, 2))
        rings = (ring, y_ring, post_ring, comb_ring)
        descs = (x_desc, y_desc, post_desc, comb_desc)
        bars = (ready, half_full, half_empty)
        gl.warp_specialize(
            [
                (
                    _load_and_collapse,
                    (descs, rings, sums, to, out_ptr, n_tokens, tiles, out_stride, eps, full, ready, ITERS, SLICES, PAD,
                     STAGES),
                ),
                (
                    _products,
                    (fn_ptr, sums, to, n_tokens, tiles, eps, smem, bars, 0, SPREAD, ITERS, SLICES, STAGES, MIXES),
                ),
                (
                    _products,
                    (fn_ptr, sums, to, n_tokens, tiles, eps, smem, bars, 1, SPREAD, ITERS, SLICES, STAGES, MIXES),
                ),
                (_spread, (x_ptr, partial_ptr, n_tokens, tiles, rings, full, ready, SLICES, STAGES)),
            ],
            [4, 4, 4],
            [PRODUCT_REGS, PRODUCT_REGS, OTHER_REGS],
        )  # fmt: skip
    else:
        w_smem = gl.allocate_shared_memory(gl.float32, [STAGES * 4, TOK], plain)
        bars = (full, half_full, half_empty)
        gl.warp_specialize(
            [
                (
                    _collapse,
                    (out_ptr, n_tokens, tiles, out_stride, ring, w_smem, full, ready, empty, SLICES, STAGES),
                ),
                (
                    _products,
                    (fn_ptr, sums, to, n_tokens, tiles, eps, smem, bars, 0, SPREAD, ITERS, SLICES, STAGES, MIXES),
                ),
                (
                    _products,
                    (fn_ptr, sums, to, n_tokens, tiles, eps, smem, bars, 1, SPREAD, ITERS, SLICES, STAGES, MIXES),
                ),
                (_loader, (x_desc, tiles, ring, full, empty, SLICES, STAGES)),
                (_mixes, (sums, to, n_tokens, tiles, eps, SLICES, ITERS)),
                (_reducer, (0, sums, tiles, eps, w_smem, ready, SLICES, PAD, STAGES)),
                (_reducer, (1, sums, tiles, eps, w_smem, ready, SLICES, PAD, STAGES)),
            ],
            [4, 4, 1, 1, 1, 1],
            [PRODUCT_REGS, PRODUCT_REGS, OTHER_REGS, OTHER_REGS, OTHER_REGS, OTHER_REGS],
        )
    _leave_zero(counter_ptr, tiles, SLICES)
