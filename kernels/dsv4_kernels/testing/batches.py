"""Whether a row's bits depend on the batch around it: kernels on batches of rows, and on each row alone.

``python -m dsv4_kernels.testing.batches --device cuda`` on a GPU; with ``TRITON_INTERPRET=1`` and ``--device cpu``
under the interpreter. One JSON line for each kernel and case; exit code 1 if any row differs.
"""

from __future__ import annotations

import argparse
import json
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from dsv4_kernels.invariant import batch_invariant
from dsv4_kernels.registry import Arguments, Case, KernelSpec, specs
from dsv4_kernels.target import forced_target
from dsv4_kernels.testing.compare import clone, run
from dsv4_kernels.testing.inputs import Inputs


@dataclass(frozen=True)
class Rows:
    """Which arguments of a kernel are rows of a batch.

    ``each``: those with a row in their first dim. ``lists``: names that are cut by the bounds in an argument, by its
    name. ``dropped``: lists of another batch, of which none are passed. ``cases``: those to take; by default all small
    ones.
    """

    each: tuple[str, ...]
    lists: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    dropped: tuple[str, ...] = ()
    cases: tuple[str, ...] = ()


_WINDOWS = ("gather_state", "gather_flat", "from_flat", "positions", "rows")
_MIXES = ("x", "out", "post", "comb")
_POST = ("y", "post", "comb", "x", "out", "new_post", "new_comb")
_TURNED = ("cos", "sin", "q", "kv", "out", "rows")
_DECODE = Rows(("q", "out"), {"indptr": ("indices",)})
_PREFILL = Rows(("q", "out"), {"prefix_indptr": ("prefix_indices",), "extend_indptr": ("extend_indices",)})
_EXPERTS = ("x", "experts", "weights", "out")
ROWS: Mapping[str, Rows] = {
    "bf16_gemm": Rows(("x", "out")),
    "block_fp8_gemm": Rows(("codes", "scales", "out")),
    "block_fp8_gemm_quant": Rows(("x", "out")),
    "block_fp8_gemm_swiglu": Rows(("h", "out")),
    "compress": Rows(_WINDOWS, dropped=("state_src", "state_dst")),
    "compress_index_pages": Rows(_WINDOWS, dropped=("state_src", "state_dst")),
    "index_score": Rows(("q", "weights")),
    "index_score_paged": Rows(("q", "weights", "request", "visible", "out")),
    "csa_stream": Rows(("topk", "request"), {"indptr": ("indices", "out")}),
    "index_topk": Rows(("scores", "visible", "out")),
    "rope_table": Rows(("positions", "out")),
    "rotate": Rows(("x", "cos", "sin")),
    "inverse_rope_quant": Rows(("o", "cos", "sin", "codes", "scales")),
    "mhc_pre": Rows(_MIXES, cases=("small-5", "small-20", "float32")),
    "mhc_post": Rows(("y", "post", "comb", "x")),
    "mhc_head": Rows(("x", "out")),
    "mhc_post_pre": Rows(_POST, cases=("small-5", "small-20")),
    "mhc_pre_norm": Rows((*_MIXES, "normed")),
    "mhc_post_pre_norm": Rows((*_POST, "normed")),
    "mhc_pre_norm_quant": Rows((*_MIXES, "normed", "codes", "scales")),
    "mhc_post_pre_norm_quant": Rows((*_POST, "normed", "codes", "scales")),
    "moe_gemm": Rows(_EXPERTS, cases=("small-40",)),  # wide enough for matrix tiles
    "moe_gemm_quant": Rows(_EXPERTS, cases=("fp4-small-20", "fp8-small-20")),
    "moe_route": Rows(("x", "token_ids", "weights", "experts")),
    "rms_norm": Rows(("x", "out")),
    "rms_norm_quant": Rows(("x", "codes", "scales")),
    "quant": Rows(("x", "codes", "scales")),
    "q_norm_rope": Rows(_TURNED),
    "kv_norm_rope": Rows(_TURNED),
    "kv_norm_rope_store": Rows(_TURNED),
    "qk_norm_rope": Rows(_TURNED),
    "qk_norm_rope_store": Rows(_TURNED),
    "qk_norm_rope_store_fp8": Rows(_TURNED),
    "ring_store": Rows(("src", "dst")),
    "sample": Rows(("logits", "temperature", "top_k", "top_p", "seed", "index", "out")),
    "sparse_decode": _DECODE,
    "sparse_decode_fp8": _DECODE,
    "sparse_prefill": _PREFILL,
    "sparse_prefill_fp8": _PREFILL,
    "add": Rows(("a", "b", "out")),
    "swiglu": Rows(("h", "out")),
    "swiglu_quant": Rows(("h", "codes", "scales")),
    "verify": Rows(("logits", "draft", "draft_probs", "temperature", "seed", "index", "accepted", "tokens")),
}
"""By kernel; ``index_streams`` has none: it makes integers, which its test holds to the reference's."""


def row_count(spec: KernelSpec, arguments: Arguments) -> int:
    """Rows of the batch in ``arguments``."""
    return next(int(arguments[n].shape[0]) for n in ROWS[spec.name].each if arguments.get(n) is not None)


def take(spec: KernelSpec, arguments: Arguments, rows: Sequence[int]) -> Arguments:
    """The batch of these ``rows`` (a row may come again) in fresh memory; what is shared is copied whole."""
    kind, out = ROWS[spec.name], clone(arguments)
    for name in kind.each:
        if arguments.get(name) is not None:
            out[name] = arguments[name][list(rows)].contiguous()
    for name in kind.dropped:
        out[name] = arguments[name][:0]
    for bounds, names in kind.lists.items():
        ends = arguments[bounds].tolist()
        lengths = torch.tensor([0, *(ends[r + 1] - ends[r] for r in rows)]).cumsum(0)
        out[bounds] = lengths.to(arguments[bounds])
        for name in names:
            pieces = [arguments[name][ends[r] : ends[r + 1]] for r in rows]
            out[name] = torch.cat(pieces) if pieces else arguments[name][:0]
    return out


def differing_rows(
    spec: KernelSpec, arguments: Arguments, sizes: Sequence[int], call: Callable[..., Any] | None = None
) -> list[str]:
    """What differs, in words, between rows in batches of ``sizes`` rows and the same rows alone; empty if nothing."""
    call, n, found = call or spec.wrapper(), row_count(spec, arguments), []
    with batch_invariant():
        alone = [run(spec, call, take(spec, arguments, [r])) for r in range(n)]
        for size in sizes:
            rows = [i % n for i in range(size)]
            for name, value in run(spec, call, take(spec, arguments, rows)).items():
                if _of_rows(spec, name):
                    expected = torch.cat([alone[r][name] for r in rows])
                else:
                    expected = _one_by_one(spec, arguments, rows, call)[name]
                if not _equal(value, expected):
                    found.append(f"{name} of a batch of {size}")
    return found


def _of_rows(spec: KernelSpec, name: str) -> bool:
    """Whether what a kernel writes as ``name`` has rows of the batch; else all rows write into it."""
    kind = ROWS[spec.name]
    return name in (*kind.each, *(n for names in kind.lists.values() for n in names)) or name.startswith("return")


def _one_by_one(
    spec: KernelSpec, arguments: Arguments, rows: Sequence[int], call: Callable[..., Any]
) -> dict[str, torch.Tensor]:
    """Memory that rows share, after each of them alone has written into it."""
    start = take(spec, arguments, [])
    shared: dict[str, torch.Tensor] = {name: start[name] for name in spec.updates if not _of_rows(spec, name)}
    for row in dict.fromkeys(rows):
        run(spec, call, {**take(spec, arguments, [row]), **shared})
    return shared


def _equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.shape == b.shape and torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))


def cases_of(spec: KernelSpec) -> list[Case]:
    """Those that are looked at."""
    names = ROWS[spec.name].cases
    return [c for c in spec.cases if c.small and (not names or c.name in names)]


def smallest(spec: KernelSpec) -> Case:
    """Its case with the smallest arguments of those that have several rows, if any has."""

    def size(case: Case) -> tuple[bool, int]:
        arguments = case.build(Inputs(torch.device("meta"), 0))
        elements = sum(v.numel() for v in arguments.values() if isinstance(v, torch.Tensor))
        return row_count(spec, arguments) < 2, elements

    return min(cases_of(spec), key=size)


def check_rows(spec: KernelSpec, case: Case, device: torch.device, sizes: Sequence[int]) -> list[str]:
    """:func:`differing_rows` of a case; one without rows differs in nothing."""
    arguments = case.build(Inputs(device, zlib.crc32(f"{spec.name}/{case.name}".encode())))
    return differing_rows(spec, arguments, sizes) if row_count(spec, arguments) else []


def main(argv: Sequence[str] | None = None) -> int:
    """Print one JSON object a line: kernel, case, what differs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--kernels", default="", help="names, comma-separated; default: all")
    parser.add_argument("--sizes", default="1,3,8,17,40", help="rows of a batch")
    parser.add_argument("--target", default="sm_90", help="take the launch tables of this target (on the CPU)")
    args = parser.parse_args(argv)
    device, names = torch.device(args.device), [name for name in args.kernels.split(",") if name]
    sizes = [int(word) for word in args.sizes.split(",")]
    if device.type != "cpu":
        return _print(_verdicts(device, names, sizes))
    from dsv4_kernels.testing import interpreter

    if not interpreter.active():
        parser.error("on the CPU kernels run under the interpreter only: set TRITON_INTERPRET=1")
    interpreter.repair()
    with forced_target(args.target):
        return _print(_verdicts(device, names, sizes))


def _verdicts(device: torch.device, names: Sequence[str], sizes: Sequence[int]) -> Iterator[dict[str, Any]]:
    """On the CPU one small case of each kernel."""
    for name in names or ROWS:
        spec = specs()[name]
        for case in [smallest(spec)] if device.type == "cpu" else cases_of(spec):
            yield {"kernel": name, "case": case.name, "differs": check_rows(spec, case, device, sizes)}


def _print(verdicts: Iterator[dict[str, Any]]) -> int:
    good = True
    for verdict in verdicts:
        good &= not verdict["differs"]
        sys.stdout.write(json.dumps(verdict) + "\n")
        sys.stdout.flush()
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
