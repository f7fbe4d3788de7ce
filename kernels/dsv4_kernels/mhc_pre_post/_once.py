"""Hyper-connections of many tokens on Hopper, their streams read once (Gluon).

The programs of a group share the columns: ``DIMS`` of each stream are a program's slice, and its part of ``fn`` stays
in registers. A group goes through its tiles of ``TOK`` tokens side by side. A tile's streams stay in shared memory
until the sums of all slices are known; then each program collapses its columns. Warps have roles, and a ring of stages
between them, so that tiles are loaded, multiplied and collapsed at once.

Sums go through memory as records of 16 bytes that are written at once and carry the number of the launch, so whoever
waits for one reads it until the number is right, and nothing is released. Numbers of other launches stay there.

A program waits for the others of its group alone, and those are started together: the numbers of their programs are
neighbours. Groups that are not complete yet are one a launch at most, so a device that is shared makes no knot of it.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from dsv4_kernels.mhc_pre_post._once_mixes import _gather_last, _last_turn, _mixes
from dsv4_kernels.mhc_pre_post._once_parts import (
    ASKED,
    DIMS,
    HEAD,
    TOK,
    WIDE,
    _by_token,
    _fn_streams,
    _leave_sums,
    _multiplied,
    _none,
    _number,
    _pairs,
    _publisher,
    _reducer,
    _squares,
    _store_collapsed,
    _stream,
)
from dsv4_kernels.mhc_pre_post._once_spread import _spread


@gluon.jit
def _barriers(N: gl.constexpr):
    """``N`` barriers for one arrival a phase."""
    barriers = gl.allocate_shared_memory(gl.int64, [N, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(N):
        mbarrier.init(barriers.index(i), count=1)
    return barriers


@gluon.jit
def _load(descs, rings, tile, col, stage, full, SPREAD: gl.constexpr):
    """Ask for a tile's streams, with ``SPREAD`` also for what is spread over them, and how."""
    bar = full.index(stage)
    if SPREAD:
        mbarrier.expect(bar, 5 * TOK * DIMS * 2 + 20 * TOK * 4)
    else:
        mbarrier.expect(bar, 4 * TOK * DIMS * 2)
    for j in gl.static_range(4):
        tma.async_copy_global_to_shared(descs[0], [j, tile * TOK, col], bar, rings[j].index(stage))
    if SPREAD:
        tma.async_copy_global_to_shared(descs[1], [tile * TOK, col], bar, rings[4].index(stage))
        tma.async_copy_global_to_shared(descs[2], [tile * TOK, 0], bar, rings[5].index(stage))
        tma.async_copy_global_to_shared(descs[3], [tile * TOK, 0], bar, rings[6].index(stage))


@gluon.jit
def _fill(descs, rings, first, groups, tiles, col, full, SPREAD: gl.constexpr, STAGES: gl.constexpr):
    """Ask for the first tiles, ``ASKED`` at once."""
    for k in gl.static_range(STAGES):
        if first + k * groups < tiles:
            if k >= ASKED:
                mbarrier.wait(full.index(k - ASKED), 0)
            _load(descs, rings, first + k * groups, col, k, full, SPREAD)


@gluon.jit
def _collapse(
    descs, rings, out_ptr, n_tokens, tiles, out_stride, w_smem, full, made, ready, begun,
    SPREAD: gl.constexpr, PDL: gl.constexpr, EARLY: gl.constexpr, SLICES: gl.constexpr, STAGES: gl.constexpr,
    SLOTS: gl.constexpr,
):  # fmt: skip
    """``out``, tile by tile; a tile's place is asked for anew when it is read, with ``EARLY`` before its weights come.

    With ``SPREAD`` new streams are stored first, and read by others of this program no more.
    """
    groups = gl.num_programs(0) // SLICES
    first = gl.program_id(0) // SLICES
    col = gl.program_id(0) % SLICES * DIMS
    if PDL:  # what the products' warps load meanwhile no kernel of a step writes
        gdc_wait()
        gdc_launch_dependents()
    mbarrier.arrive(begun, count=1)
    _fill(descs, rings, first, groups, tiles, col, full, SPREAD, STAGES)
    count = 0
    for tile in range(first, tiles, groups):
        stage = count % STAGES
        slot = count % SLOTS
        mbarrier.wait(made.index(stage), count // STAGES & 1)
        if SPREAD:
            for j in gl.static_range(4):
                tma.async_copy_shared_to_global(descs[0], [j, tile * TOK, col], rings[j].index(stage))
        if not EARLY:
            mbarrier.wait(ready.index(slot), count // SLOTS & 1)
        f0, f1, f2, f3 = (
            _pairs(rings[0], stage),
            _pairs(rings[1], stage),
            _pairs(rings[2], stage),
            _pairs(rings[3], stage),
        )
        if not EARLY:
            _store_collapsed(f0, f1, f2, f3, w_smem, slot, out_ptr, n_tokens, tile, out_stride, SLICES)
        if SPREAD:
            tma.store_wait(pendings=0)
        gl.thread_barrier()
        later = tile + STAGES * groups
        if later < tiles:
            _load(descs, rings, later, col, stage, full, SPREAD)
        if EARLY:
            mbarrier.wait(ready.index(slot), count // SLOTS & 1)
            _store_collapsed(f0, f1, f2, f3, w_smem, slot, out_ptr, n_tokens, tile, out_stride, SLICES)
        count = count + 1


@gluon.jit
def _products(fn_ptr, tiles, rings, full, made, parts, part_full, SLICES: gl.constexpr, STAGES: gl.constexpr):
    """Products and sums of squares, 32 columns of each stream a warp."""
    groups = gl.num_programs(0) // SLICES
    fn0, fn1, fn2, fn3 = _fn_streams(fn_ptr, SLICES * DIMS)
    count = 0
    for _ in range(gl.program_id(0) // SLICES, tiles, groups):
        stage = count % STAGES
        mbarrier.wait(full.index(stage), count // STAGES & 1)
        x0, x1 = _stream(rings[0], stage).load(WIDE), _stream(rings[1], stage).load(WIDE)
        x2, x3 = _stream(rings[2], stage).load(WIDE), _stream(rings[3], stage).load(WIDE)
        sums = (_none(), _none(), _none())
        sums = _multiplied(x0, fn0, sums)
        sums = _multiplied(x1, fn1, sums)
        sums = _multiplied(x2, fn2, sums)
        sums = _multiplied(x3, fn3, sums)
        mbarrier.arrive(made.index(stage), count=1)
        squares = gl.sum(_squares(x0) + _squares(x1) + _squares(x2) + _squares(x3), 2)
        m0, m1, m2 = _by_token(sums[0]), _by_token(sums[1]), _by_token(sums[2])
        _leave_sums(m0, m1, m2, squares, parts, part_full, count)
        count = count + 1


@gluon.jit
def _last(mixed, parts, last_full, ready, SLICES: gl.constexpr, SLOTS: gl.constexpr):
    """When all products are done: what the program's last mixes are made of, if these are hurried."""
    last, many = _last_turn(mixed[5], SLICES)
    if last >= 0:
        if last + SLOTS >= many:  # else it has come long ago, and another has in its place
            mbarrier.wait(ready.index(last % SLOTS), last // SLOTS & 1)
        tile = gl.program_id(0) // SLICES + last * (gl.num_programs(0) // SLICES)
        _gather_last(mixed, tile, parts, last_full, many, SLICES)


@gluon.jit
def _products_and_last(
    fn_ptr, rings, full, made, parts, part_full, last_full, ready, mixed,
    SLICES: gl.constexpr, STAGES: gl.constexpr, SLOTS: gl.constexpr,
):  # fmt: skip
    _products(fn_ptr, mixed[5], rings, full, made, parts, part_full, SLICES, STAGES)
    _last(mixed, parts, last_full, ready, SLICES, SLOTS)


@gluon.jit
def _spread_and_last(
    fn_ptr, rings, full, made, parts, part_full, last_full, ready, mixed,
    SLICES: gl.constexpr, STAGES: gl.constexpr, SLOTS: gl.constexpr,
):  # fmt: skip
    _spread(fn_ptr, mixed[5], rings, full, made, parts, part_full, SLICES, STAGES)
    _last(mixed, parts, last_full, ready, SLICES, SLOTS)


@gluon.jit(do_not_specialize=["n_tokens", "n_slices"])
def mhc_once_kernel(
    x_desc, y_desc, post_desc, comb_desc, fn_ptr, base_ptr, scale_ptr, out_ptr, new_post_ptr, new_comb_ptr,
    record_ptr, n_tokens, n_slices, out_stride, rms_eps, hc_eps,
    SPREAD: gl.constexpr, PDL: gl.constexpr, ITERS: gl.constexpr, SLICES: gl.constexpr, STAGES: gl.constexpr,
    PRODUCT_REGS: gl.constexpr, OTHER_REGS: gl.constexpr, AT_ONCE: gl.constexpr,
    MIXES_AT_ONCE: gl.constexpr, EARLY: gl.constexpr,
):  # fmt: skip
    """Streams ``x [n_tokens, 4, SLICES * DIMS]``, with ``SPREAD`` new ones in their place first.

    ``record``: ``HEAD`` words and a record for each tile and slice; zero at first, and nothing else writes there.
    Grid: groups of ``SLICES`` programs.
    """
    tiles = gl.cdiv(n_tokens, TOK)
    dtype: gl.constexpr = out_ptr.dtype.element_ty
    plain: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    SLOTS: gl.constexpr = STAGES + 1 if EARLY else STAGES
    streams: gl.constexpr = gl.NVMMASharedLayout(128, 16, 3)
    ring0 = gl.allocate_shared_memory(dtype, [STAGES, 1, TOK, DIMS], streams)  # apart, so that stores to one
    ring1 = gl.allocate_shared_memory(dtype, [STAGES, 1, TOK, DIMS], streams)  # do not wait for loads of another
    ring2 = gl.allocate_shared_memory(dtype, [STAGES, 1, TOK, DIMS], streams)
    ring3 = gl.allocate_shared_memory(dtype, [STAGES, 1, TOK, DIMS], streams)
    warps: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [2, 1, 0])
    part0 = gl.allocate_shared_memory(gl.float32, [8, 16, 8], warps)
    part1 = gl.allocate_shared_memory(gl.float32, [8, 16, 8], warps)
    part2 = gl.allocate_shared_memory(gl.float32, [8, 16, 8], warps)
    square_part = gl.allocate_shared_memory(gl.float32, [16, 8], gl.SwizzledSharedLayout(1, 1, 1, [1, 0]))
    w_smem = gl.allocate_shared_memory(gl.float32, [SLOTS * 4, TOK], plain)
    full, made = _barriers(STAGES), _barriers(STAGES)
    published, ready = _barriers(SLOTS), _barriers(SLOTS)
    part_full, part_empty, last_full, begun = (
        _barriers(1).index(0), _barriers(1).index(0), _barriers(1).index(0), _barriers(1).index(0)
    )  # fmt: skip
    fence_async_shared()
    records = record_ptr + HEAD
    to = (new_post_ptr, new_comb_ptr)
    eps = (rms_eps, hc_eps)
    parts = (part0, part1, part2, square_part, part_empty)
    reduced = (records, base_ptr, scale_ptr, tiles, n_slices, eps, w_smem, published, ready, begun)
    mixed = (records, base_ptr, scale_ptr, to, n_tokens, tiles, n_slices, eps)
    if SPREAD:
        y_ring = gl.allocate_shared_memory(dtype, [STAGES, TOK, DIMS], gl.NVMMASharedLayout(128, 16, 2))
        post_ring = gl.allocate_shared_memory(gl.float32, [STAGES, TOK, 4], gl.NVMMASharedLayout(0, 32, 2))
        comb_ring = gl.allocate_shared_memory(gl.float32, [STAGES, TOK, 16], gl.NVMMASharedLayout(64, 32, 2))
        rings = (ring0, ring1, ring2, ring3, y_ring, post_ring, comb_ring)
        descs = (x_desc, y_desc, post_desc, comb_desc)
        gl.warp_specialize(
            [
                (
                    _collapse,
                    (descs, rings, out_ptr, n_tokens, tiles, out_stride, w_smem, full, made, ready, begun, True, PDL,
                     EARLY, SLICES, STAGES, SLOTS),
                ),
                (
                    _spread_and_last,
                    (fn_ptr, rings, full, made, parts, part_full, last_full, ready, mixed, SLICES, STAGES, SLOTS),
                ),
                (_publisher, (records, tiles, parts, part_full, published, begun, SLICES, SLOTS)),
                (_reducer, (0, reduced, AT_ONCE, SLICES, SLOTS)),
                (_reducer, (1, reduced, AT_ONCE, SLICES, SLOTS)),
                (_mixes, (mixed, begun, parts, last_full, MIXES_AT_ONCE, SLICES, ITERS)),
            ],
            [8, 1, 1, 1, 1],
            [PRODUCT_REGS, OTHER_REGS, OTHER_REGS, OTHER_REGS, OTHER_REGS],
        )  # fmt: skip
    else:
        alone = (ring0, ring1, ring2, ring3)
        gl.warp_specialize(
            [
                (
                    _collapse,
                    ((x_desc,), alone, out_ptr, n_tokens, tiles, out_stride, w_smem, full, made, ready, begun, False,
                     PDL, EARLY, SLICES, STAGES, SLOTS),
                ),
                (
                    _products_and_last,
                    (fn_ptr, alone, full, made, parts, part_full, last_full, ready, mixed, SLICES, STAGES, SLOTS),
                ),
                (_publisher, (records, tiles, parts, part_full, published, begun, SLICES, SLOTS)),
                (_reducer, (0, reduced, AT_ONCE, SLICES, SLOTS)),
                (_reducer, (1, reduced, AT_ONCE, SLICES, SLOTS)),
                (_mixes, (mixed, begun, parts, last_full, MIXES_AT_ONCE, SLICES, ITERS)),
            ],
            [8, 1, 1, 1, 1],
            [PRODUCT_REGS, OTHER_REGS, OTHER_REGS, OTHER_REGS, OTHER_REGS],
        )  # fmt: skip
    gl.thread_barrier()
    done = gl.atomic_add(record_ptr + 1, 1, sem="acq_rel", scope="gpu")
    if done == gl.num_programs(0) - 1:
        gl.store(record_ptr + 1, 0)
        gl.store(record_ptr, _number(records))
