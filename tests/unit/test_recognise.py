"""Baselines of public runtimes, known by their kernels' names."""

from __future__ import annotations

import shlex
from pathlib import Path

import numpy as np
import pytest

from dsv4lab.cli.main import main
from dsv4lab.overlap.plan import HIP
from dsv4lab.predict.recognise import recognise
from dsv4lab.predict.whatif import baseline_of, moved
from dsv4lab.timeline.timeline import Kind, Timeline
from dsv4lab.trace.api import load_trace

VLLM = [
    ("_ZN5aiter23mhc_pre_big_fuse_kernelIDF16bLi320ELi4ELi2ELi256ELb1EEEvPfS1_PT_", "mhc_post_pre"),
    ("Cijk_Alik_Bljk_F8BS_MT64x32x256", ""),
    ("_fused_q_kv_rmsnorm_kernel", "q_norm"),
    ("bf16_fp32_gemv", "indexer.compressor.gemm"),
    ("_save_partial_states_kernel", "indexer.compressor.store"),
    ("_fused_kv_compress_norm_rope_insert_indexer_mxfp4_attn", "indexer.compressor.store"),
    ("bf16_fp32_gemv", "compressor.gemm"),
    ("_save_partial_states_kernel", "compressor.store"),
    ("_fused_kv_compress_norm_rope_insert_sparse_attn", "compressor.store"),
    ("_fused_indexer_q_rope_quant_kernel", "indexer.q_rope"),
    ("deepgemm_fp8_paged_mqa_logits", "indexer.topk"),
    ("sparse_attn_decode_kernel", "attention"),
    ("_fused_inv_rope_fp8_quant_per_head", "inverse_rope"),
    ("void cross_device_reduce_1stage<bf16>", "all_reduce"),
    ("mfma_moe1_silu_mul_afp8_wfp4_bf16", "moe.experts"),
]
ATOM = [
    ("hca_compress_forward_kernel", "compressor.store"),
    ("update_compressor_states_kernel", "compressor.store"),
    ("fused_compress_attn_kernel", "compressor.store"),
    ("qk_norm_rope_H8_D128_RD64", "qk_norm_rope_store"),
    ("sparse_attn_v4_paged_decode_kernel", "attention"),
    ("csa_translate_pack", "attention"),
    ("decompress_weights", ""),
]


def trace(names: list[str]) -> Timeline:
    n = len(names)
    known = tuple(dict.fromkeys(names))
    return Timeline.build(
        start_ns=np.arange(n) * 12_000,
        dur_ns=np.full(n, 10_000),
        kind=np.full(n, int(Kind.KERNEL), np.int8),
        name=np.array([known.index(x) for x in names], np.int32),
        stream=np.zeros(n, np.int32),
        names=known,
        streams=("7",),
    )


@pytest.mark.parametrize("rows", [VLLM, ATOM], ids=["vllm", "atom"])
def test_kernels_of_public_runtimes(rows: list[tuple[str, str]]) -> None:
    assert recognise(trace([name for name, _ in rows]), range(len(rows))) == [op for _, op in rows]


def test_the_compressors_of_a_vllm_baseline_are_moved_and_joined() -> None:
    base = baseline_of(trace([name for name, _ in VLLM]))
    work = moved(base, HIP)
    side = {i: s for i, s in enumerate(work.streams) if s != "main"}
    assert side == {3: "side1", 4: "side1", 5: "side1", 6: "side0", 7: "side0", 8: "side0"}
    assert work.waits[3] == work.waits[6] == (2,)
    assert work.waits[10] == (5,)  # index keys before the scores
    assert work.waits[11] == (8,)  # rows before the attention


def test_a_selection_matches_the_op_or_the_kernel(repo_root: Path) -> None:
    file = repo_root / "traces" / "rocm_mi300x_sglang_decode_hipgraph.pt.trace.json.gz"
    base = baseline_of(load_trace(file, cache=False))
    assert {"attention", "kv_store", "norm", "rope"} <= set(base.ops)
    by_op, by_kernel = (moved(base, HIP, move={p: "side0"}) for p in ("kv_store", "*store_kvcache*"))
    assert by_op.streams == by_kernel.streams
    assert by_op.streams.count("side0") == 36


def test_a_predicted_timeline_is_written_and_read_like_any_other(
    repo_root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = repo_root / "traces" / "rocm_mi300x_sglang_decode_hipgraph.pt.trace.json.gz"
    out = tmp_path / "predicted.json.gz"
    line = f"whatif {file} --no-cache --device mi300x --runtime rocm-10+ordering-edges --move kv_store=side0"
    assert main(shlex.split(f"{line} --out {out}")) == 0
    printed = capsys.readouterr()
    assert "simulated, not measured" in printed.out
    assert "--move without --join" in printed.err
    found = load_trace(out, cache=False)
    assert found.meta["simulated"] is True
    busy = found.stream_busy(main="main")
    assert {s.stream for s in busy.streams} == {"main", "side0"}
    assert busy.concurrency > 1.0
    assert main(["trace", "summary", str(out), "--no-cache"]) == 0
    assert main(shlex.split(f"{line} --hw-queues 2,4 --out {out}")) == 2
    assert "--out: it takes one prediction" in capsys.readouterr().err
