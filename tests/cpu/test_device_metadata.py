"""Metadata packed for a device, and padded to the one shape of a batch bucket."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dsv4lab.config.presets import preset
from dsv4lab.env import child_environ
from dsv4lab.errors import PoolError
from dsv4lab.kv.geometry import Geometry
from dsv4lab.kv.metadata import BatchItem, IndexStream, StepMetadata, build_metadata
from dsv4lab.kv.packed import PackedMetadata, on_device
from dsv4lab.kv.padding import Bucket, pad_decode

MODEL = preset("tiny")
TOPK = MODEL.index_topk
GEOMETRY = Geometry.plan(MODEL, 4, 4 * 768, verify_tokens=3)
CPU = torch.device("cpu")


def decode(starts: list[int], width: int = 1) -> StepMetadata:
    """Metadata of requests at these positions, ``width`` tokens each, three pages to each."""
    items = [
        BatchItem(i + 1, tuple(range(3 * i + 1, 3 * i + 4)), start, tuple(range(2, 2 + width)))
        for i, start in enumerate(starts)
    ]
    return build_metadata(GEOMETRY, TOPK, items, "decode")


def streams(meta: StepMetadata) -> list[IndexStream]:
    assert meta.csa is not None
    return [*meta.streams.values(), IndexStream(meta.csa.indptr, meta.csa.indices)]


def row(stream: IndexStream, t: int) -> list[int]:
    return stream.indices[int(stream.indptr[t]) : int(stream.indptr[t + 1])].tolist()


def plain(meta: StepMetadata) -> dict[str, object]:
    """Every tensor as a list."""

    def of(value: object) -> object:
        if isinstance(value, torch.Tensor):
            return value.tolist()
        if isinstance(value, dict):
            return {k: of(v) for k, v in value.items()}
        names = getattr(value, "__dataclass_fields__", None)
        return {name: of(getattr(value, name)) for name in names} if names else value

    return {name: of(getattr(meta, name)) for name in meta.__dataclass_fields__}


def test_the_cpu_keeps_its_metadata() -> None:
    meta = decode([5])
    assert on_device(meta, CPU) is meta


def test_packed_metadata_stays_at_its_address_and_follows_what_is_loaded() -> None:
    bucket = Bucket(4, 1, 3)
    first, second = (pad_decode(decode(starts), GEOMETRY, TOPK, bucket) for starts in ([5, 300], [127, 640, 3]))
    packed = PackedMetadata(first, CPU)
    address = packed.meta.positions.data_ptr()
    for meta in (first, second):
        packed.load(meta)
        assert plain(packed.meta) == plain(meta)
        assert packed.meta.positions.data_ptr() == address
    with pytest.raises(PoolError, match="does not have the layout"):
        packed.load(decode([5]))


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 3), st.lists(st.integers(0, 760), min_size=1, max_size=4), st.integers(0, 2))
def test_padding_keeps_real_rows_and_depends_on_the_bucket_alone(width: int, starts: list[int], spare: int) -> None:
    meta, bucket = decode(starts, width), Bucket(min(4, len(starts) + spare), width, 3)
    padded = pad_decode(meta, GEOMETRY, TOPK, bucket)
    shapes = PackedMetadata(padded, CPU)
    shapes.load(pad_decode(decode([0], width), GEOMETRY, TOPK, bucket))  # an error if any shape depended on the batch
    real = meta.T
    for before, after in zip(streams(meta), streams(padded), strict=True):
        assert [row(after, t) for t in range(real)] == [row(before, t) for t in range(real)]
        assert [row(after, t) for t in range(real, bucket.tokens)] == [[0]] * (bucket.tokens - real)
    for name in ("token_ids", "positions", "slots", "ring_row", "visible4", "visible128", "csa_len"):
        values = getattr(padded, name)
        assert torch.equal(values[:real], getattr(meta, name)), name
        assert not values[real:].any(), name
    assert torch.equal(padded.last_rows[: meta.n_items], meta.last_rows)
    assert torch.equal(padded.page_table[: meta.n_items, : meta.page_table.shape[1]], meta.page_table)
    assert not padded.page_table[meta.n_items :].any()
    for ratio, plan in padded.compress.items():
        known = meta.compress[ratio]
        assert torch.equal(plan.out_row[: known.n], known.out_row)
        assert torch.equal(plan.gather_state[: known.n], known.gather_state)
        assert (plan.out_row[known.n :] == -1).all()
        assert (plan.out_slot[known.n :] == -1).all()
        assert (plan.state_dst[len(known.state_dst) :] == -1).all()


def test_what_does_not_fit_a_bucket_is_refused() -> None:
    with pytest.raises(PoolError, match=r"2 requests of up to 1 pages do not fit a bucket of 1 requests of 3 pages"):
        pad_decode(decode([5, 6]), GEOMETRY, TOPK, Bucket(1, 1, 3))
    with pytest.raises(PoolError, match=r"up to 3 pages do not fit a bucket of 1 requests of 2 pages"):
        pad_decode(decode([700]), GEOMETRY, TOPK, Bucket(1, 1, 2))
    with pytest.raises(PoolError, match=r"a bucket of width 2 takes decode forwards"):
        pad_decode(decode([5]), GEOMETRY, TOPK, Bucket(1, 2, 3))


def interpreted(repo_root: Path, script: str, *arguments: str) -> dict[str, float]:
    pytest.importorskip("triton", reason="triton is not installed")
    environ = child_environ({"TRITON_INTERPRET": "1", "PYTHONPATH": f"{repo_root}:{repo_root / 'kernels'}"})
    command = [sys.executable, Path(__file__).with_name(script), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=environ, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, float] = json.loads(done.stdout)
    return found


@pytest.mark.slow
def test_activations_made_in_fp8_are_those_that_products_make(repo_root: Path) -> None:
    found = interpreted(repo_root, "interpreted_quantised.py")
    assert found["difference"] == 0.0
    assert found["largest"] > 1.0


@pytest.mark.slow
@pytest.mark.parametrize(("rows", "keys"), [("bf16", "bf16"), ("fp8", "fp8"), ("bf16", "fp4")])
def test_the_model_runs_on_interpreted_kernels_and_padding_only_rounds(repo_root: Path, rows: str, keys: str) -> None:
    found = interpreted(repo_root, "interpreted_model.py", rows, keys)
    assert found["prefill"] <= 0.1
    assert found["decode"] <= 0.1
    assert found["padding"] <= 0.1  # the split of a list follows its room, so sums round differently
    assert found["largest"] > 1.0
