"""Launch choices of attention, and the device's index streams against those that the host derives."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from dsv4_kernels.index_streams import index_streams_reference
from dsv4_kernels.launch import recorded
from dsv4_kernels.sparse_decode._launch import SPLITS
from dsv4_kernels.target import TARGETS, forced_target
from dsv4_kernels.testing.inputs import Inputs
from hypothesis import given
from hypothesis import strategies as st

from dsv4lab.config.presets import preset
from dsv4lab.kv.geometry import Geometry
from dsv4lab.kv.metadata import BatchItem, Mode, StepMetadata, build_metadata


@given(st.sampled_from(sorted(SPLITS)), st.integers(1, 512), st.integers(0, 300_000), st.sampled_from((8, 16, 64, 128)))
def test_splits_are_at_least_one_and_never_more_than_blocks(
    kind: str, programs: int, capacity: int, heads: int
) -> None:
    policy = SPLITS[kind]
    splits = policy.splits(TARGETS["sm_90"], programs, capacity, 64, heads)
    assert 1 <= splits <= min(policy.most, max(1, -(-capacity // 64)))


def test_many_programs_are_not_split_and_one_long_list_is() -> None:
    policy = SPLITS["hopper"]
    assert policy.splits(TARGETS["sm_90"], 132, 4096, 64, 64) == 1
    assert policy.splits(TARGETS["sm_90"], 1, 4096, 64, 64) > 16


@pytest.mark.parametrize(("runs", "tokens"), [(True, 4), (False, 1)])
def test_tokens_share_rows_only_where_lists_are_runs(runs: bool, tokens: int) -> None:
    pytest.importorskip("triton", reason="triton is not installed")
    from dsv4_kernels.sparse_prefill.cases import prefill_arguments
    from dsv4_kernels.sparse_prefill.triton_op import sparse_prefill_portable

    with forced_target("sm_90"), recorded() as launches:
        sparse_prefill_portable(**prefill_arguments(Inputs("meta", 0), 16, (8,), 0), runs=runs)
    assert [launch.config["TOKENS"] for launch in launches] == [tokens]


def streams_of(
    meta: StepMetadata, items: list[BatchItem], geometry: Geometry, topk: int, mode: Mode
) -> dict[str, torch.Tensor]:
    starts = torch.tensor([i.start for i in items])[meta.request]
    lengths = torch.tensor([0, *(len(i.tokens) for i in items)]).cumsum(0)[:-1]
    width = 128 + int(meta.visible128.max()) + topk
    out = {f"{n}_indptr": torch.empty(meta.T + 1, dtype=torch.int32) for n in ("pool", "hca", "csa", "extend")}
    out |= {f"{n}_indices": torch.empty(meta.T * width, dtype=torch.int32) for n in ("pool", "hca", "csa", "extend")}
    out["ring_row"] = torch.empty(meta.T, dtype=torch.int64)
    index_streams_reference(
        meta.positions,
        meta.slots,
        meta.positions + 1 if mode == "decode" else starts,
        lengths[meta.request],
        meta.request,
        meta.page_table,
        window=geometry.window,
        ring_rows=geometry.ring_rows,
        swa_rows=geometry.swa_rows,
        topk=topk,
        hca_entries_per_page=geometry.entries_per_page(128),
        **out,
    )
    return out


@pytest.mark.parametrize("mode", ["prefill", "decode"])
def test_streams_are_those_of_the_metadata(mode: Mode) -> None:
    config = preset("tiny")
    verify = 4 if mode == "decode" else 1
    geometry = Geometry.plan(config, 3, 4096, verify_tokens=verify)
    counts = (1, verify, 2) if mode == "decode" else (300, 7, 40)
    items = [
        BatchItem(1, (1, 2, 3, 9), 0, tuple(range(2, 2 + counts[0]))),
        BatchItem(2, (4, 5), 250, tuple(range(2, 2 + counts[1]))),
        BatchItem(3, (6, 7, 8, 10), 700, tuple(range(2, 2 + counts[2]))),
    ]
    topk = 32
    meta = build_metadata(geometry, topk, items, mode)
    got = streams_of(meta, items, geometry, topk, mode)
    lists = meta.streams if mode == "decode" else meta.prefix
    assert meta.csa is not None
    want = {"pool": lists[0], "hca": lists[128], "csa": meta.csa}
    if meta.extend is not None:
        want["extend"] = meta.extend
    for name, stream in want.items():
        assert torch.equal(got[f"{name}_indptr"], stream.indptr), name
        assert torch.equal(got[f"{name}_indices"][: stream.indices.numel()], stream.indices), name
    assert torch.equal(got["ring_row"], meta.ring_row)


def test_recorded_results_were_gated_and_name_their_machine(repo_root: Path) -> None:
    for file in sorted((repo_root / "kernels/bench/results").glob("h200-*a*.jsonl")):
        rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
        if not rows[0].get("header"):
            continue
        assert rows[0]["machine"]["gpu"] == "NVIDIA H200"
        assert all(row["gate"] in ("green", "not run") for row in rows[1:])
        assert np.all([row["us"] > 0 and row["bytes"] > 0 for row in rows[1:]])


@pytest.mark.parametrize(
    ("heads", "tokens", "length", "kernel"),
    [
        (16, 1, 192, "_sparse_decode_kernel"),
        (16, 8, 192, "_sparse_decode_kernel"),
        (16, 1, 1152, "hopper_fp8_kernel"),
        (16, 8, 640, "hopper_fp8_kernel"),
        (64, 1, 192, "hopper_fp8_kernel"),
    ],
)
def test_fp8_lists_go_to_the_portable_kernel_only_where_few_heads_have_short_ones(
    heads: int, tokens: int, length: int, kernel: str
) -> None:
    pytest.importorskip("triton", reason="triton is not installed")
    from dsv4_kernels.sparse_decode.cases import decode_arguments, two_pools
    from dsv4_kernels.sparse_decode.triton_op import sparse_decode_fp8

    inputs = Inputs("meta", 0)
    arguments = decode_arguments(inputs, heads, (length,) * tokens) | two_pools(inputs, 700, 512)
    with forced_target("sm_90"), recorded() as launches:
        sparse_decode_fp8(**arguments)
    assert launches[0].kernel.__name__ == kernel
