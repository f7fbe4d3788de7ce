"""The points of ``pairs.py``: ops of a decode step, and which of them its plans have on two streams at a time."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from dsv4_kernels.bf16_gemm import cases as bf16
from dsv4_kernels.block_fp8_gemm import cases as gemm
from dsv4_kernels.compress import cases as compress
from dsv4_kernels.index_score import cases as index_score
from dsv4_kernels.launch import recorded
from dsv4_kernels.moe_gemm import cases as moe
from dsv4_kernels.moe_route import cases as route
from dsv4_kernels.registry import Arguments, spec
from dsv4_kernels.swiglu import cases as swiglu
from dsv4_kernels.target import forced_target
from dsv4_kernels.testing.inputs import Inputs
from small import compile_key, warm
from small_points import EXPERTS, GEMMS

Calls = list[tuple[str, Arguments]]
"""The kernels of an op, by their names in the registry, with their arguments, in order."""

SHARDS = {"flash8": "flash-tp8", "pro8": "pro-tp8", "flash": "flash"}
WIDE = {"flash": 4096, "pro": 7168}
QUERY = {"flash": {"qkv_a": (1536, 4096), "index_q_b": (8192, 1024)},
         "pro": {"qkv_a": (2048, 7168), "index_q_b": (8192, 1536)}}  # fmt: skip
COLUMNS = {"csa": 2624, "kv4": 2048, "kv128": 1024, "keys4": 512}
"""Columns of bf16 products beside the query's: both compressors and the index weights in one, and each compressor."""
ROUTES = {"flash": route.FLASH, "pro": route.PRO}
CHOSEN = {"flash": 512, "pro": 1024}
ENTRIES = 2048
"""Entries that the indexer looks through: 8192 tokens of context, one entry for four."""
OWN = ("q_b", "w13", "swiglu", "w2", "experts")
ALIKE = (*QUERY["flash"], *COLUMNS, "route", "topk", "compress", "keys")
"""Parts that are the same whole and on a shard."""
TOKENS = (1, 4, 8, 32)
COMPILE_SECONDS = 60


def named(model: str, part: str) -> str:
    """The op's name: parts that a shard has whole are those of the whole model."""
    return f"{model.removesuffix('8') if part in ALIKE else model}.{part}"


def calls(name: str, tokens: int, inputs: Inputs) -> Calls:
    """The kernels and arguments of an op."""
    model, _, part = name.partition(".")
    base = model.removesuffix("8")
    if part == "experts":
        return [("moe_gemm_quant", moe._fp4(inputs, tokens, EXPERTS[SHARDS[model]]))]
    if part == "swiglu":
        return [("swiglu", swiglu._rows(inputs, tokens, EXPERTS[SHARDS[model]][2]))]
    if part == "route":
        return [("moe_route", route._route(inputs, tokens, ROUTES[base]))]
    if part in ("compress", "keys"):
        return [("compress", compress._compress(inputs, 4, tokens, tokens=tokens, kept=tokens,
                                                d=512 if part == "compress" else 128))]  # fmt: skip
    if part == "topk":
        scores = index_score._paged(inputs, "bf16", [ENTRIES] * tokens)
        k, visible = CHOSEN[base], scores["visible"]
        found = {"scores": scores["out"], "visible": visible, "k": k}
        out = inputs.empty(tokens, k, dtype=torch.int32)
        return [("index_score_paged", scores), ("index_topk", {**found, "out": out})]
    if part in COLUMNS:
        return [("bf16_gemm", bf16._product(inputs, tokens, COLUMNS[part], WIDE[base]))]
    rows, columns = QUERY[base][part] if part in QUERY[base] else GEMMS[SHARDS[model]][part]
    return [("block_fp8_gemm_quant", gemm._quantising(inputs, tokens, rows, columns))]


def moved(name: str, tokens: int) -> float:
    """Bytes that an op moves, as the kernels' cost functions have them."""
    return float(sum(spec(kernel).cost(a).bytes for kernel, a in calls(name, tokens, Inputs("meta", 0))))


def ops(tokens: Sequence[int]) -> Iterator[tuple[str, int]]:
    """Every op with its tokens."""
    parts = [(model, part) for part in (*ALIKE, *OWN) for model in SHARDS]
    for name in dict.fromkeys(named(model, part) for model, part in parts):
        yield from ((name, t) for t in tokens)


def beside(model: str) -> Iterator[tuple[list[str], list[str]]]:
    """What a step of ``model`` has on the main and on a side stream, both behind the same kernel.

    Plans side and hip: the query's products beside the compressors'. cuda and query: both products behind the query's
    norm, and the choice of entries. moe: routed experts and what is before them beside the shared expert.
    """
    shared = ["w13", "swiglu", "w2"]
    for main, side in (
        (["qkv_a"], ["csa"]), (["qkv_a"], ["kv128"]), (["qkv_a"], ["kv4"]), (["qkv_a"], ["keys4"]),
        (["qkv_a", "q_b"], ["csa", "compress", "keys"]), (["qkv_a", "q_b"], ["kv128"]),
        (["q_b"], ["index_q_b"]), (["index_q_b"], ["q_b"]), (["q_b"], ["index_q_b", "topk"]),
        (["index_q_b", "topk"], ["q_b"]), (["q_b"], ["compress"]), (["topk"], ["q_b"]),
        (["route"], ["w13"]), (["route", "experts"], shared), (["experts"], shared),
    ):  # fmt: skip
        yield [named(model, part) for part in main], [named(model, part) for part in side]


def launches(tokens: Sequence[int], arch: str) -> Iterator[Any]:
    """Every launch of the ops, once for each that compiles to other code."""
    seen: set[Any] = set()
    for name, count in ops(tokens):
        with forced_target(arch), recorded() as found:
            for kernel, arguments in calls(name, count, Inputs("meta", 0)):
                spec(kernel).wrapper()(**arguments)
        for launch in found:
            key = compile_key(launch)
            if key not in seen:
                seen.add(key)
                yield launch


def compile_share(tokens: Sequence[int], arch: str, at: int, of: int) -> None:
    """Compile every ``of``-th launch, from the ``at``-th on."""
    torch.cuda.init()
    for n, launch in enumerate(launches(tokens, arch)):
        if n % of == at:
            warm(launch)


def compile_ahead(tokens: Sequence[int], arch: str, processes: int) -> None:
    """Fill Triton's cache; what is not done in time is compiled where it is needed."""
    context = multiprocessing.get_context("spawn")
    shares = [context.Process(target=compile_share, args=(tokens, arch, at, processes)) for at in range(processes)]
    for share in shares:
        share.start()
    end = time.monotonic() + COMPILE_SECONDS
    for share in shares:
        share.join(timeout=max(0.1, end - time.monotonic()))
        if share.is_alive():
            share.kill()
