"""The points of ``small.py``: ops of a decode step on the shapes of the models and of their TP-8 shards; candidates."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from dsv4_kernels.block_fp8_gemm import cases as gemm
from dsv4_kernels.launch import PDL, Config, config
from dsv4_kernels.mhc_pre_post import cases as mhc
from dsv4_kernels.moe_gemm import cases as moe
from dsv4_kernels.registry import Arguments
from dsv4_kernels.testing.inputs import Inputs

GEMMS = {
    "flash-tp8": {
        "qkv_a": (1536, 4096), "q_b": (4096, 1024), "index_q_b": (8192, 1024), "o_b": (4096, 1024),
        "w13": (512, 4096), "w2": (4096, 256),
    },
    "pro-tp8": {
        "qkv_a": (2048, 7168), "q_b": (8192, 1536), "o_b": (7168, 2048), "w13": (768, 7168), "w2": (7168, 384),
    },
    "flash": {"q_b": (32768, 1024), "o_b": (4096, 8192), "w13": (4096, 4096), "w2": (4096, 2048)},
    "pro": {"q_b": (65536, 1536), "o_b": (7168, 16384), "w13": (6144, 7168), "w2": (7168, 3072)},
}  # fmt: skip
"""Rows and columns of the fp8 weights; whole models' where they are not as in a shard."""

EXPERTS = {
    "flash-tp8": (256, 4096, 256), "pro-tp8": (384, 7168, 384), "flash": (256, 4096, 2048), "pro": (384, 7168, 3072),
}  # fmt: skip
WIDTHS = {"flash": 4096, "pro": 7168}


@dataclass(frozen=True)
class Point:
    """One op on one shape: the kernel's name, how its arguments are made, and other ways to the same results."""

    op: str
    kernel: str
    label: str
    tokens: int
    build: Callable[[Inputs], Arguments]
    rivals: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    fresh: tuple[str, ...] = ()
    """Arguments that the predecessor writes, so that a step finds them in the L2: they are timed so, too."""


def points(ops: frozenset[str], tokens: tuple[int, ...], of: frozenset[str]) -> Iterator[Point]:
    """Every point, of the models ``of``; shards first."""
    for models in (("flash-tp8",), ("pro-tp8",), ("flash", "pro")):
        for n_tokens in tokens:
            for model in (m for m in models if m in of):
                if "gemm" in ops:
                    yield from _gemms(model, n_tokens)
                if "codes" in ops:
                    yield from _products(model, n_tokens)
                if "moe" in ops:
                    yield _moe(model, n_tokens)
    for n_tokens in tokens:
        for model, d in WIDTHS.items():
            if "mhc" in ops:
                yield from _mhc(model, n_tokens, d)


def _shapes(model: str) -> dict[tuple[int, int], str]:
    """Rows and columns of the model's products, each once, with the names of those that have them."""
    names: dict[tuple[int, int], str] = {}
    for name, shape in GEMMS[model].items():
        names[shape] = f"{names[shape]}, {name}" if shape in names else name
    return names


def _gemms(model: str, tokens: int) -> Iterator[Point]:
    for (n, k), name in _shapes(model).items():
        yield Point(
            "gemm", "block_fp8_gemm_quant", f"{model} {name} {n}x{k}", tokens,
            lambda i, n=n, k=k: gemm._quantising(i, tokens, n, k), {"quant + split product": _quant_and_split},
        )  # fmt: skip


def _products(model: str, tokens: int) -> Iterator[Point]:
    """Of activations that were made in fp8."""
    for (n, k), name in _shapes(model).items():
        yield Point(
            "codes", "block_fp8_gemm", f"{model} {name} {n}x{k}", tokens,
            lambda i, n=n, k=k: gemm._product(i, tokens, n, k), {}, ("codes", "scales"),
        )  # fmt: skip


def _quant_and_split(x: torch.Tensor, weight: torch.Tensor, weight_scales: torch.Tensor, out: torch.Tensor) -> None:
    """What few tokens went through before: two launches, sums split over programs."""
    from dsv4_kernels.block_fp8_gemm.triton_op import _many
    from dsv4_kernels.norm_quant.triton_op import quant
    from dsv4_kernels.workspace import workspace

    codes = workspace("small.codes", tuple(x.shape), torch.float8_e4m3fn, x.device)
    scales = workspace("small.scales", (x.shape[0], x.shape[1] // 128), torch.uint8, x.device)
    quant(x, codes, scales)
    _many(codes, scales, weight, weight_scales, out)


def _moe(model: str, tokens: int) -> Point:
    rivals = {"tiles": _moe_by("_tiles")} if tokens >= 16 else {}
    if tokens <= 16:
        rivals["words"] = _moe_by("_vectors")
    return Point("moe", "moe_gemm_quant", model, tokens, lambda i: moe._fp4(i, tokens, EXPERTS[model]), rivals)


def _moe_by(way: str) -> Callable[..., None]:
    """The experts by one of the wrapper's ways, whatever it would choose."""

    def run(**a: Any) -> None:
        from dsv4_kernels.moe_gemm import triton_op

        experts = triton_op._experts(a["x"], a["w13"], a["w13_scales"], a["w2"], a["w2_scales"])
        getattr(triton_op, way)(a["x"], a["experts"], a["weights"], experts, a["limit"], a["out"])

    return run


def _mhc(model: str, tokens: int, d: int) -> Iterator[Point]:
    before = {"split mix, collapse, norm": _mhc_before}
    yield Point("mhc", "mhc_pre_norm", model, tokens, lambda i: mhc._normed(i, mhc._pre(i, tokens, d)), before)
    before = {"split mix, collapse, norm": _mhc_post_pre_before}
    yield Point(
        "mhc", "mhc_post_pre_norm", model, tokens, lambda i: mhc._normed(i, mhc._post_pre(i, tokens, d)), before
    )


def _mhc_before(**arguments: Any) -> None:
    """Few tokens as many: three launches."""
    from dsv4_kernels.mhc_pre_post import triton_op

    with _few_tokens(triton_op, 0):
        triton_op.mhc_pre(**arguments)


def _mhc_post_pre_before(**arguments: Any) -> None:
    from dsv4_kernels.mhc_pre_post import triton_op

    with _few_tokens(triton_op, 0):
        triton_op.mhc_post_pre(**arguments)


@contextmanager
def _few_tokens(module: Any, most: int) -> Iterator[None]:
    """Within the block ``module`` counts ``most`` tokens as few."""
    held = module.FEW_TOKENS
    module.FEW_TOKENS = most
    try:
        yield
    finally:
        module.FEW_TOKENS = held


def _few() -> tuple[Config, ...]:
    vector = (
        (4, 32, 256), (4, 16, 256), (2, 16, 256), (4, 16, 512), (4, 8, 1024), (2, 8, 1024), (8, 16, 1024), (4, 4, 1024),
        (4, 4, 2048), (4, 8, 2048), (2, 2, 2048), (4, 4, 4096), (8, 4, 4096), (4, 2, 4096), (8, 4, 8192), (8, 2, 8192),
        (4, 16, 1024), (8, 8, 2048), (8, 8, 4096), (8, 2, 4096),
    )  # fmt: skip
    dots = (
        (4, 1, 32, 256), (4, 1, 64, 256), (4, 1, 16, 512), (4, 1, 16, 1024), (8, 1, 16, 1024), (8, 1, 32, 1024),
        (4, 1, 32, 1024), (4, 3, 16, 1024), (4, 3, 32, 512), (8, 1, 16, 2048), (8, 2, 16, 2048),
    )  # fmt: skip
    lanes = (
        (4, 1, 16, 512), (4, 2, 16, 512), (4, 4, 16, 512), (4, 6, 16, 512), (4, 2, 32, 512), (2, 8, 16, 256),
        (8, 2, 16, 1024), (8, 4, 16, 1024), (8, 7, 16, 1024), (16, 1, 32, 1024),
    )  # fmt: skip
    return (
        *(config(w, 1, PDL, BLOCK_N=n, BLOCK_K=k, KIND=0) for w, n, k in vector),
        *(config(w, s, PDL, BLOCK_N=n, BLOCK_K=k, KIND=1) for w, s, n, k in dots),
        *(config(w, ahead, PDL, BLOCK_N=n, BLOCK_K=k, KIND=4) for w, ahead, n, k in lanes),
    )


def _down() -> tuple[Config, ...]:
    sizes = (
        (4, 8, 8, 8), (4, 4, 8, 8), (2, 4, 8, 8), (2, 8, 8, 8), (4, 16, 8, 8), (4, 4, 16, 8), (4, 2, 16, 8),
        (4, 4, 64, 1), (4, 4, 64, 2), (2, 2, 64, 2), (4, 2, 64, 4), (4, 1, 64, 8), (8, 2, 64, 8), (8, 4, 64, 4),
        (4, 4, 128, 1), (4, 2, 128, 2), (4, 1, 128, 4), (8, 1, 128, 8), (4, 8, 32, 2),
    )  # fmt: skip
    old = config(4, 1, BLOCK_N=4, BLOCK_G=64, BLOCK_S=1)
    return (old, *(config(w, 1, PDL, BLOCK_N=n, BLOCK_G=g, BLOCK_S=s) for w, n, g, s in sizes))


def _gate_up() -> tuple[Config, ...]:
    sizes = ((4, 4, 128), (4, 2, 128), (2, 2, 128), (8, 4, 128), (4, 1, 128), (2, 1, 128), (4, 4, 64), (2, 2, 64),
             (8, 2, 256), (8, 4, 256), (4, 1, 256))  # fmt: skip
    old = config(4, 1, BLOCK_N=4, BLOCK_G=128)
    return (old, *(config(w, 1, PDL, BLOCK_N=n, BLOCK_G=g) for w, n, g in sizes))


CANDIDATES: Mapping[str, tuple[Config, ...]] = {
    "block_fp8_few": _few(),
    "moe_down": _down(),
    "moe_gate_up": _gate_up(),
}
"""By launch table; a table that is not here is tried with its own candidates."""


def fits(table: str, candidate: Config, sizes: Mapping[str, int]) -> bool:
    """Whether a candidate is worth its time: no more than half of its lanes would be idle."""
    if table == "block_fp8_few":
        return _fits_few(candidate, sizes["tokens"], sizes["k"])
    if table == "block_fp8_gemm":
        return max(16, sizes["tokens"]) // 2 <= candidate["BLOCK_T"] <= max(16, sizes["tokens"])
    if table.startswith("moe_") and table.endswith("_lanes"):
        return candidate["STAGES"] == 0 or sizes["rest"] == 0
    if table == "moe_down":
        return sizes["groups"] * 2 > candidate["BLOCK_G"] >= min(16, sizes["groups"] // 2)
    return True


def _fits_few(candidate: Config, tokens: int, k: int) -> bool:
    """One token and two by vector, of a lane's 64 to 256 bytes at once, or by whole rows of few columns."""
    kind, block = candidate["KIND"], candidate["BLOCK_K"]
    whole = k <= block < 2 * k
    if kind == 4:
        return k >= block and tokens > 1
    if kind:
        return whole and (tokens > 2 or candidate["BLOCK_N"] == 32)
    held = candidate["BLOCK_N"] * block // (32 * candidate.num_warps)
    steps = k > block >= min(1024, k // 2)
    return (whole or steps) and (64 <= held <= 256 if tokens <= 2 else tokens <= 4)
