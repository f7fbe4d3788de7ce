"""Points of ``small.py``: what a decode step chooses, ``topk``, ``route`` and ``hash``, ``pages``, and ``one``.

``pages`` are index keys; ``one`` its other short launches: norms, lists of rows, compression, sampling, verification.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from dsv4_kernels.compress import cases as compress
from dsv4_kernels.index_streams import cases as streams
from dsv4_kernels.index_topk import cases as topk
from dsv4_kernels.launch import Config
from dsv4_kernels.moe_route import cases as route
from dsv4_kernels.norm_quant import cases as norm
from dsv4_kernels.sample import cases as sample
from dsv4_kernels.verify import cases as verify
from small_points import Point

ROWS = ((1024, 1024), (2048, 2048), (4096, 2064), (8192, 8192), (16384, 16384))
"""Room for entries of a row, and how many there are; the second is a step after 8192 tokens of context."""


def choice_points(ops: frozenset[str], tokens: tuple[int, ...]) -> Iterator[Point]:
    """Every point of these groups, few tokens first."""
    for n in tokens:
        if "topk" in ops:
            sizes = ((room, seen, k) for room, seen in ROWS for k in (512, 1024) if k == 512 or 1024 < room < 16384)
            yield from (_topk(n, room, seen, k) for room, seen, k in sizes)
        if "route" in ops:
            yield from (_route(n, name, shape) for name, shape in (("flash", route.FLASH), ("pro", route.PRO)))
        if "hash" in ops:
            yield from (_hash(n, name, shape) for name, shape in (("flash", route.FLASH), ("pro", route.PRO)))
        if "pages" in ops:
            yield from (_pages(n, form) for form in ("fp8", "fp4"))
        if "one" in ops:
            yield from _one(n)


def holds(table: str, candidate: Config, sizes: Mapping[str, int]) -> bool:
    """Whether a candidate of a table of these ops is worth its time: rows fit its block, and fill half of it."""
    if table == "index_topk.tail":
        few = candidate["CTAS"] == 1 or sizes["tokens"] <= 128
        return few and sizes["entries"] <= candidate["BLOCK"] < 2 * sizes["entries"]
    if table == "moe_route.words":
        whole = sizes["d"] % (candidate["VEC"] * 32 * candidate.num_warps) == 0
        return whole and candidate["GROUP"] <= sizes["tokens"]
    if table == "moe_route":
        return candidate["BLOCK_T"] <= max(16, sizes["tokens"])
    return table != "moe_route.few" or candidate["BLOCK_D"] < 2 * sizes["d"]


def _topk(n: int, room: int, seen: int, k: int) -> Point:
    rivals = {"portable": _portable}
    return Point(
        "topk", "index_topk", f"{k} of {seen} ({room})", n, lambda i: topk._topk(i, (seen,) * n, room, k), rivals,
        ("scores",),
    )  # fmt: skip


def _portable(**arguments: Any) -> None:
    """The kernels that run everywhere, which were the only ones before."""
    from dsv4_kernels.index_topk.triton_op import index_topk_portable

    index_topk_portable(**arguments)


def _route(n: int, name: str, shape: tuple[int, int, float]) -> Point:
    rivals = {"tiles of tokens": _route_by(0), "one warp an expert": _route_by(n)}
    return Point("route", "moe_route", name, n, lambda i: route._route(i, n, shape), rivals, fresh=("x",))


def _hash(n: int, name: str, shape: tuple[int, int, float]) -> Point:
    return Point(
        "hash",
        "moe_route",
        f"{name} hash",
        n,
        lambda i: route._route(i, n, shape, table=True),
        fresh=("x", "token_ids"),
    )


def _route_by(few: int) -> Callable[..., None]:
    """The portable router that counts ``few`` tokens as few."""

    def run(**arguments: Any) -> None:
        from dsv4_kernels.moe_route import triton_op

        held, triton_op.FEW_TOKENS = triton_op.FEW_TOKENS, few
        try:
            triton_op.moe_route_portable(**arguments)
        finally:
            triton_op.FEW_TOKENS = held

    return run


def _pages(n: int, form: str) -> Point:
    return Point("pages", "compress_index_pages", f"{form} keys", n, lambda i: compress._keys(i, n, form, tokens=n))


def _one(n: int) -> Iterator[Point]:
    """Activations, lists and logits are timed from the L2, too."""
    for d in (1536, 7168):  # the queries' rank, the width
        yield Point("one", "rms_norm", f"{d}", n, lambda i, d=d: norm._norm(i, n, d), fresh=("x",))
        yield Point("one", "rms_norm_quant", f"{d}", n, lambda i, d=d: norm._quant(i, n, d), fresh=("x",))
    yield Point("one", "quant", "7168", n, lambda i: norm._quant(i, n, 7168, norm=False), fresh=("x",))
    lists = ((8192, 1),) * n
    yield Point("one", "index_streams", "after 8192", n, lambda i: streams._streams(i, lists, decode=True))
    chosen = ("indices", "topk")
    yield Point("one", "csa_stream", "512", n, lambda i: streams._csa(i, (512,) * n, 512), fresh=chosen)
    yield Point(
        "one", "compress", "ratio 4", n, lambda i: compress._compress(i, 4, n, tokens=n, kept=n), fresh=("ks",)
    )  # fmt: skip
    for warm in (False, True):
        name = "gumbel" if warm else "greedy"
        build = lambda i, warm=warm: sample._rows(i, n, sample.VOCABULARY, warm=warm)  # noqa: E731
        yield Point("one", "sample", name, n, build, fresh=("logits",))
        check = lambda i, warm=warm: verify._chain(i, n, 6, verify.VOCABULARY, warm=warm)  # noqa: E731
        yield Point("one", "verify", f"{name}, 6 rows", n, check, fresh=("logits",))
