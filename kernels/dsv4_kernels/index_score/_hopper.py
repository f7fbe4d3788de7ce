"""Hopper sibling of the indexer scores: programs of equal work, keys through a ring in shared memory (Gluon).

A program has a run of tiles of 64 entries of one token. Its four warps ask for a tile with ``cp.async`` some tiles
ahead, and multiply it with wgmma, entries on rows, keys from registers and queries from shared memory. Quantised keys
are multiplied as float16, which holds e4m3 and e2m1 exactly; queries fit once a power of two, which the head's weight
takes back, has brought them into range. Columns of keys and queries are permuted alike, so that each lane takes a run
of neighbouring codes out of shared memory in one or two loads.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    async_copy,
    fence_async_shared,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

TILE = gl.constexpr(64)
DIM = gl.constexpr(128)


@gluon.jit
def _add(a, b):
    return a + b


@gluon.jit
def _share(visible_ptr, request_ptr, n_tokens, slots, TOKENS: gl.constexpr):
    """Token, its request, first tile, tiles and entries of this program.

    About ``slots`` programs share the tiles of all tokens. Each warp has all tokens, and so sums without the others.
    """
    layout: gl.constexpr = gl.BlockedLayout([TOKENS // 32], [32], [gl.num_warps()], [0])
    t = gl.arange(0, TOKENS, layout=layout)
    seen = gl.load(visible_ptr + t, mask=t < n_tokens, other=0).to(gl.int32)
    request = gl.load(request_ptr + t, mask=t < n_tokens, other=0).to(gl.int32)
    tiles = (seen + TILE - 1) // TILE
    total = gl.maximum(gl.sum(tiles, 0), 1)
    runs = gl.where(tiles > 0, gl.maximum(tiles * slots // total, 1), 0)
    upto = gl.associative_scan(runs, 0, _add)
    before = upto <= gl.program_id(0)
    token = gl.sum(before.to(gl.int32), 0)
    run = gl.program_id(0) - gl.max(gl.where(before, upto, 0), 0)
    mine = t == token
    own = gl.sum(gl.where(mine, tiles, 0), 0)
    each = gl.cdiv(own, gl.maximum(gl.sum(gl.where(mine, runs, 0), 0), 1))
    count = gl.minimum(each, own - run * each)
    return token, gl.sum(gl.where(mine, request, 0), 0), run * each, count, gl.sum(gl.where(mine, seen, 0), 0)


@gluon.jit
def _fetch(
    keys_ptr, page, page_bytes, tile, key_smem, scale_smem, scale_type: gl.constexpr, PER_PAGE: gl.constexpr,
    KIND: gl.constexpr,
):  # fmt: skip
    """Keys and scales of a tile, which lies in ``page``, on their way."""
    WIDTH: gl.constexpr = DIM // 2 if KIND == 2 else DIM
    RUN: gl.constexpr = 8 if KIND == 0 else 16  # 16 bytes
    copy: gl.constexpr = gl.BlockedLayout([1, RUN], [32 * RUN // WIDTH, WIDTH // RUN], [gl.num_warps(), 1], [1, 0])
    row = gl.arange(0, TILE, layout=gl.SliceLayout(1, copy))
    col = gl.arange(0, WIDTH, layout=gl.SliceLayout(0, copy))
    first = tile % (PER_PAGE // TILE) * TILE
    base = keys_ptr + page.to(gl.int64) * page_bytes
    async_copy.async_copy_global_to_shared(key_smem, base + ((first + row) * WIDTH)[:, None] + col[None, :])
    if KIND > 0:
        line: gl.constexpr = gl.BlockedLayout([1], [32], [gl.num_warps()], [0])
        scales = (base + PER_PAGE * WIDTH).to(gl.pointer_type(scale_type))
        async_copy.async_copy_global_to_shared(scale_smem, scales + first + gl.arange(0, TILE, layout=line))


@gluon.jit
def _lanes_first(x, ROWS: gl.constexpr, WIDTH: gl.constexpr):
    """Columns of ``x`` in the order in which the lanes of a quad, each a run of neighbours, feed them to a product."""
    x = x.reshape([ROWS, 4, WIDTH // 16, 2, 2]).permute((0, 2, 3, 1, 4))
    return x.reshape([ROWS, WIDTH])


@gluon.jit
def _queries(q_ptr, q_smem, q_stride_h, HEADS: gl.constexpr, BLOCK_HEADS: gl.constexpr, KIND: gl.constexpr):
    """Queries to shared memory, ordered as keys are; the power of two, ``[BLOCK_HEADS]``, that weights take back."""
    layout: gl.constexpr = gl.BlockedLayout([1, 8], [2, 16], [gl.num_warps(), 1], [1, 0])
    h = gl.arange(0, BLOCK_HEADS, layout=gl.SliceLayout(1, layout))
    d = gl.arange(0, DIM, layout=gl.SliceLayout(0, layout))
    q = gl.load(
        q_ptr + (h * q_stride_h)[:, None] + d[None, :], mask=(h < HEADS)[:, None] & (d >= 0)[None, :], other=0.0
    )
    if KIND == 0:
        q_smem.index(0).store(q)
        back = gl.full([BLOCK_HEADS], 1.0, gl.float32, layout=gl.SliceLayout(1, layout))
    else:
        wide = q.to(gl.float32)
        amax = gl.max(gl.abs(wide), 1)
        exponent = gl.minimum(268 - (amax.to(gl.int32, bitcast=True) >> 23), 253)
        half = (wide * (exponent << 23).to(gl.float32, bitcast=True)[:, None]).to(gl.float16)
        back = ((254 - exponent) << 23).to(gl.float32, bitcast=True)
        if KIND == 1:
            q_smem.index(0).store(_lanes_first(half, BLOCK_HEADS, DIM))
        else:
            back = back * 0.001953125  # codes are 2^-6 of their value, the largest factor of a group 2^15
            even, odd = gl.split(half.reshape([BLOCK_HEADS, DIM // 2, 2]))
            q_smem.index(0).store(_lanes_first(even, BLOCK_HEADS, DIM // 2))
            q_smem.index(1).store(_lanes_first(odd, BLOCK_HEADS, DIM // 2))
    return back


@gluon.jit
def _fp8_keys(key_smem, operand: gl.constexpr):
    """A stage's keys as float16, each lane's 32 bytes of a row in two loads."""
    raw: gl.constexpr = gl.DistributedLinearLayout(
        [[0, 1], [0, 2], [0, 4], [0, 8], [0, 16], [8, 0]], [[0, 32], [0, 64], [1, 0], [2, 0], [4, 0]],
        [[16, 0], [32, 0]], [], [TILE, DIM],
    )  # fmt: skip
    key = key_smem.load(raw).to(gl.float8e4nv, bitcast=True).to(gl.float16)
    return gl.convert_layout(_lanes_first(key, TILE, DIM), operand)


@gluon.jit
def _as_e4m3(code, HIGH: gl.constexpr, PACKED: gl.constexpr):
    """The low or the high e2m1 codes of bytes as e4m3, ``2^-6`` of their value: only places of bits change."""
    if PACKED:
        if HIGH:
            code = gl.inline_asm_elementwise(
                "{ .reg .b32 a; shr.b32 a, $1, 2; and.b32 a, a, 0x1C1C1C1C; lop3.b32 $0, $1, 0x80808080, a, 0xEA; }",
                "=r,r", [code], dtype=gl.uint8, is_pure=True, pack=4,
            )  # fmt: skip
        else:
            code = gl.inline_asm_elementwise(
                "{ .reg .b32 a, b; shl.b32 a, $1, 2; shl.b32 b, $1, 4; and.b32 a, a, 0x1C1C1C1C;"
                " lop3.b32 $0, b, 0x80808080, a, 0xEA; }",
                "=r,r", [code], dtype=gl.uint8, is_pure=True, pack=4,
            )  # fmt: skip
    elif HIGH:
        code = (((code >> 2) & 28) | (code & 128)).to(gl.uint8)
    else:
        code = (((code & 7) << 2) | ((code & 8) << 4)).to(gl.uint8)
    return code.to(gl.float8e4nv, bitcast=True)


@gluon.jit
def _fp4_half(code, power, HIGH: gl.constexpr, PACKED: gl.constexpr, operand: gl.constexpr):
    """Every other value of the keys as float16, times the factor of its group."""
    key = _as_e4m3(code, HIGH, PACKED).to(gl.float16).reshape([TILE, 4, 16])
    key = (key * gl.convert_layout(power, gl.SliceLayout(2, key.type.layout)).expand_dims(2)).reshape([TILE, DIM // 2])
    return gl.convert_layout(_lanes_first(key, TILE, DIM // 2), operand)


@gluon.jit
def _fp4_factors(word, quads: gl.constexpr):
    """Of a word of four e8m0 codes a key: float16 factors ``[TILE, 4]`` of its groups, and float32 scales ``[TILE]``.

    A key's largest group has the factor ``2^15``, one that is up to ``2^29`` times smaller a power of two, less is 0.
    """
    shift = 8 * gl.arange(0, 4, layout=gl.SliceLayout(0, quads))
    exponent = (word[:, None] >> shift[None, :]) & 255
    most = gl.max(exponent, 1)
    factor = (gl.maximum(exponent + (30 - most)[:, None], 0) << 10).to(gl.int16)
    return factor.to(gl.float16, bitcast=True), (most << 23).to(gl.float32, bitcast=True)


@gluon.jit
def _products(
    key_smem, scale_smem, q_smem, zero, mma: gl.constexpr, BLOCK_HEADS: gl.constexpr, KIND: gl.constexpr,
    PACKED: gl.constexpr,
):  # fmt: skip
    """Products ``[TILE, BLOCK_HEADS]`` of a tile with the queries, but for its keys' scales ``[TILE]``.

    ``zero`` is 0 in a way that keeps matrix descriptors of the queries out of registers.
    """
    operand: gl.constexpr = gl.DotOperandLayout(0, mma, 2)
    rows: gl.constexpr = gl.SliceLayout(1, mma)
    s = gl.zeros([TILE, BLOCK_HEADS], gl.float32, layout=mma)
    q = q_smem.index(zero).permute((1, 0))
    if KIND == 0:
        s = warpgroup_mma(key_smem.load(operand), q, s, use_acc=False, is_async=True)
        scale = gl.full([TILE], 1.0, gl.float32, layout=rows)
    elif KIND == 1:
        s = warpgroup_mma(_fp8_keys(key_smem, operand), q, s, use_acc=False, is_async=True)
        scale = scale_smem.load(rows)
    else:
        raw: gl.constexpr = gl.DistributedLinearLayout(
            [[0, 1], [0, 2], [0, 4], [0, 8], [8, 0]], [[0, 16], [0, 32], [1, 0], [2, 0], [4, 0]],
            [[16, 0], [32, 0]], [], [TILE, DIM // 2],
        )  # fmt: skip
        quads: gl.constexpr = gl.DistributedLinearLayout(
            [[8, 0]], [[0, 1], [0, 2], [1, 0], [2, 0], [4, 0]], [[16, 0], [32, 0]], [], [TILE, 4]
        )
        code = key_smem.load(raw)
        factor, scale = _fp4_factors(scale_smem.load(gl.SliceLayout(1, quads)), quads)
        low = _fp4_half(code, factor, False, PACKED, operand)
        s = warpgroup_mma(low, q, s, use_acc=False, is_async=True)
        high = _fp4_half(code, factor, True, PACKED, operand)
        s = warpgroup_mma(high, q_smem.index(1 + zero).permute((1, 0)), s, is_async=True)
        scale = gl.convert_layout(scale, rows)
    s = warpgroup_mma_wait(0, deps=[s])
    return s, scale


@gluon.jit(do_not_specialize=["n_tokens", "slots"])
def index_score_hopper_kernel(
    q_ptr, weights_ptr, keys_ptr, page_table_ptr, request_ptr, visible_ptr, out_ptr, n_tokens, slots, factor,
    q_stride_t, q_stride_h, w_stride, page_bytes, page_table_stride, out_stride,
    HEADS: gl.constexpr, BLOCK_HEADS: gl.constexpr, TOKENS: gl.constexpr, PER_PAGE: gl.constexpr, KIND: gl.constexpr,
    PACKED: gl.constexpr, PDL: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """See the module. ``KIND`` 0: keys of bf16, whose page is counted in values; 1: e4m3, 2: e2m1, both in bytes."""
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    token, request, first, count, seen = _share(visible_ptr, request_ptr, n_tokens, slots, TOKENS)
    if count <= 0:
        return
    WIDTH: gl.constexpr = DIM // 2 if KIND == 2 else DIM
    PARTS: gl.constexpr = 2 if KIND == 2 else 1
    TILES: gl.constexpr = PER_PAGE // TILE
    tiles: gl.constexpr = gl.NVMMASharedLayout(64 if KIND == 2 else 128, 16 if KIND == 0 else 8, 2)
    queries: gl.constexpr = gl.NVMMASharedLayout(128, 16, 2)
    line: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    scale_type: gl.constexpr = gl.int32 if KIND == 2 else gl.float32
    query_type: gl.constexpr = q_ptr.dtype.element_ty if KIND == 0 else gl.float16
    key_smem = gl.allocate_shared_memory(keys_ptr.dtype.element_ty, [STAGES, TILE, WIDTH], tiles)
    scale_smem = gl.allocate_shared_memory(scale_type, [STAGES, TILE], line)
    q_smem = gl.allocate_shared_memory(query_type, [PARTS, BLOCK_HEADS, DIM // PARTS], queries)
    token = token.to(gl.int64)
    table = page_table_ptr + request.to(gl.int64) * page_table_stride
    for i in gl.static_range(STAGES - 1):
        if i < count:
            page = gl.load(table + (first + i) // TILES)
            _fetch(
                keys_ptr,
                page,
                page_bytes,
                first + i,
                key_smem.index(i),
                scale_smem.index(i),
                scale_type,
                PER_PAGE,
                KIND,
            )
        async_copy.commit_group()
    mma: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [gl.num_warps(), 1], [16, BLOCK_HEADS, 16])
    h = gl.arange(0, BLOCK_HEADS, layout=gl.SliceLayout(0, mma))
    w = gl.load(weights_ptr + token * w_stride + h, mask=h < HEADS, other=0.0).to(gl.float32) * factor
    back = _queries(q_ptr + token * q_stride_t, q_smem, q_stride_h, HEADS, BLOCK_HEADS, KIND)
    w = w * gl.convert_layout(back, gl.SliceLayout(0, mma))
    fence_async_shared()
    page = gl.load(table + (first + STAGES - 1) // TILES, mask=count > STAGES - 1, other=0)
    e = first * TILE + gl.arange(0, TILE, layout=gl.SliceLayout(1, mma))
    out = out_ptr + token * out_stride
    for i in range(count):
        stage = i % STAGES
        ahead = i + STAGES - 1
        async_copy.wait_group(STAGES - 2)
        gl.thread_barrier()
        if ahead < count:
            _fetch(
                keys_ptr, page, page_bytes, first + ahead, key_smem.index(ahead % STAGES),
                scale_smem.index(ahead % STAGES), scale_type, PER_PAGE, KIND,
            )  # fmt: skip
        async_copy.commit_group()
        page = gl.load(table + (first + ahead + 1) // TILES, mask=ahead + 1 < count, other=0)
        s, scale = _products(
            key_smem.index(stage), scale_smem.index(stage), q_smem, i >> 30, mma, BLOCK_HEADS, KIND, PACKED
        )
        total = gl.sum(gl.maximum(s, 0.0) * w[None, :], 1)
        if KIND > 0:
            total = total * scale
        gl.store(out + i * TILE + e, total, mask=i * TILE + e < seen)
