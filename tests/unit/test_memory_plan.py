"""The memory planner: the table of dsv4-spec 3.11, what fits, and what it says when something does not."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv4lab.cli.main import main
from dsv4lab.config.presets import preset
from dsv4lab.errors import ConfigError, PoolError
from dsv4lab.kv.formats import PoolFormat
from dsv4lab.kv.memory import MemoryPlan, MemoryWish, plan_memory

GB = 10**9
FLASH, PRO = preset("flash"), preset("pro")
TABLE = {
    "flash": {("bf16", "fp8"): 6229, ("bf16", "fp4"): 5893, ("fp8", "fp8"): 4153, ("fp8", "fp4"): 3817},
    "pro": {("bf16", "fp8"): 8918, ("bf16", "fp4"): 8438, ("fp8", "fp8"): 5945, ("fp8", "fp4"): 5465},
}
CELLS = [(model, *formats, size) for model, row in TABLE.items() for formats, size in row.items()]


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert main(["memory", *words, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def form(model: str = "flash", **chosen: str) -> PoolFormat:
    return PoolFormat.choose(preset(model), dtype="bfloat16", device="cuda", **chosen)


def plan(wish: MemoryWish, model: str = "flash", **chosen: str) -> MemoryPlan:
    return plan_memory(preset(model), form(model, **chosen), wish)


@pytest.mark.parametrize(("model", "kv", "index", "size"), CELLS)
def test_bytes_per_token_to_the_byte(
    capsys: pytest.CaptureFixture[str], model: str, kv: str, index: str, size: int
) -> None:
    words = ("--preset", model, "--kv-cache-dtype", kv, "--index-cache-dtype", index)
    found = printed(capsys, *words)
    assert found["bytes_per_token"] == size
    assert (found["kv_cache_dtype"], found["index_cache_dtype"], found["kv_layout"]) == (kv, index, "unified")


def test_the_readme_documents_every_key(capsys: pytest.CaptureFixture[str], repo_root: Path) -> None:
    lines = (repo_root / "README.md").read_text(encoding="utf-8").splitlines()
    (cell,) = (line for line in lines if line.startswith("| `dsv4lab memory"))
    documented = set(re.findall(r"`([a-z_0-9]+)`", cell))
    assert documented == set(printed(capsys, "--preset", "pro", "--kv-cache-dtype", "bf16"))


def test_bytes_per_slot_of_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    keys = ("ring_bytes_per_slot", "state4_bytes_per_slot", "state128_bytes_per_slot")
    expected = {
        ("flash", "1"): (5.64, 1.72, 10.5),
        ("flash", "6"): (5.86, 3.44, 21.0),
        ("pro", "1"): (8.00, 2.46, 16.3),
        ("pro", "6"): (8.31, 4.92, 32.5),
    }
    for (model, width), megabytes in expected.items():
        found = printed(capsys, "--preset", model, "--kv-cache-dtype", "bf16", "--speculative-num-draft-tokens", width)
        assert [found[key] / 1e6 for key in keys] == pytest.approx(megabytes, rel=0.004)
        assert found["bytes_per_slot"] == sum(found[key] for key in keys)
        assert found["ring_rows"] == 128 + int(width) - 1
        assert found["draft_bytes_per_slot"] == 0


def test_defaults_are_those_of_a_gpu(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    found = printed(capsys, "--preset", "pro", "--kv-cache-dtype", "bf16")
    assert (found["bytes_per_token"], found["index_cache_dtype"]) == (8918, "fp8")
    assert (found["slots"], found["max_running_requests"]) == (257, 256)
    assert (found["pages"], found["tokens"], found["context_length"]) == (4097, 1048576, 1048576)
    assert found["pool_bytes"] == found["slots_bytes"] + found["pages_bytes"]
    monkeypatch.setenv("SGLANG_HACK_FLASHMLA_BACKEND", "tilelang")
    former = printed(capsys, "--preset", "flash")
    assert (former["kv_layout"], former["kv_cache_dtype"], former["bytes_per_row"]) == ("three_pool", "fp8", 584)


@given(
    memory=st.integers(10**8, 3 * 10**11),
    fraction=st.floats(0.5, 1.0),
    requests=st.none() | st.integers(1, 512),
    tokens=st.none() | st.integers(1, 2**21),
    context=st.none() | st.integers(1, 2**20),
    width=st.integers(1, 8),
    layout=st.sampled_from(["unified", "three_pool"]),
    model=st.sampled_from(["flash", "pro", "tiny"]),
)
def test_a_plan_fits_and_uses_what_there_is(
    memory: int,
    fraction: float,
    requests: int | None,
    tokens: int | None,
    context: int | None,
    width: int,
    layout: str,
    model: str,
) -> None:
    context = None if context is None else min(context, preset(model).max_position_embeddings)
    wish = MemoryWish(
        device_memory=memory,
        mem_fraction_static=fraction,
        max_running_requests=requests,
        max_total_tokens=tokens,
        context_length=context,
        verify_tokens=width,
    )
    try:
        found = plan(wish, model, layout=layout)
    except PoolError as error:
        _check_offers(str(error), wish, model, layout)
        return
    g = found.geometry
    assert found.pool_bytes <= int(memory * fraction) == found.available
    assert requests is None or g.slots == requests + 1
    assert g.capacity_tokens >= max(tokens or 1, context or 1)
    assert found.context_length <= g.capacity_tokens
    assert g.max_verify_tokens >= width
    page = found.form.page_bytes(g)
    full = max(g.rows(r) for r in g.compress_ratios) > 2**31 - 1 - 64
    assert tokens is not None or full or found.available - found.pool_bytes < page, "room for one more page"


def _check_offers(text: str, wish: MemoryWish, model: str, layout: str) -> None:
    """Whatever the error offers does fit."""
    offers = re.findall(r"(\d+) requests? with (\d+) tokens", text.partition("what would fit: ")[2])
    assert offers or "nothing: 1 request with one page takes" in text
    for requests, tokens in offers:
        fitting = replace(wish, max_running_requests=int(requests), max_total_tokens=int(tokens), context_length=None)
        assert plan(fitting, model, layout=layout).geometry.slots == int(requests) + 1


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (
            "--device-memory 24GB --max-running-requests 1000 --context-length 1000000",
            "take 22.4 GiB, 20.1 GiB are available; what would fit: 860 requests with 1000192 tokens or 1000 requests",
        ),
        ("--device-memory 10MB", "what would fit: nothing: 1 request with one page takes 37.4 MiB"),
        (
            "--device-memory 80GiB --weight-memory 155GiB",
            "leave nothing of the 72.0 GiB (0.9 of 80.0 GiB) for the pool: a device of 172 GiB holds the weights alone",
        ),
        (
            "--kv-layout three_pool --swa-full-tokens-ratio 0.1 --max-running-requests 256",
            "swa_full_tokens_ratio 0.1 of 1048576 tokens gives 104704; what would fit: 203 requests",
        ),
        ("--kv-layout three_pool --kv-cache-dtype bf16", "the three_pool layout holds fp8 rows"),
        ("--context-length 2000000", "context_length = 2000000: flash takes at most 1048576 tokens"),
        ("--device-memory lots", "--device-memory: got 'lots', it takes bytes, such as 80GiB, 141GB or 85899345920"),
        ("--mem-fraction-static 1.5", "--mem-fraction-static: got '1.5', it takes a number above 0, at most 1"),
        ("--page-size 100", "geometry page_size = 100: takes a multiple of 128 tokens"),
        ("--preset nano", "model preset 'nano' is unknown"),
    ],
)
def test_what_does_not_fit_is_one_line_that_says_what_would(
    capsys: pytest.CaptureFixture[str], words: str, text: str
) -> None:
    assert main(["memory", *words.split()]) == 2
    error = capsys.readouterr().err
    assert text in error
    assert error.startswith("dsv4lab: error: ")
    assert error.count("\n") == 1


def test_ratio_is_inert_in_a_unified_pool_and_bounds_the_former_one() -> None:
    for memory in (None, 60 * GB):
        wish = MemoryWish(device_memory=memory, swa_full_tokens_ratio=0.01)
        assert plan(wish).geometry == plan(replace(wish, swa_full_tokens_ratio=None)).geometry
    bounded = plan(MemoryWish(swa_full_tokens_ratio=0.02), layout="three_pool").geometry
    assert (bounded.slots, bounded.ring_rows, bounded.swa_rows) == (40, 512, 20480)
    assert bounded.swa_rows <= 0.02 * bounded.capacity_tokens


@pytest.mark.parametrize(
    ("model", "kind", "layers", "rows"), [("pro", "dspark", 3, 133), ("flash-preview", "mtp", 1, 131)]
)
def test_a_drafter_has_bf16_rings_of_its_own(
    capsys: pytest.CaptureFixture[str], model: str, kind: str, layers: int, rows: int
) -> None:
    """Whatever the pool's format; the widths are those of the drafters by themselves (dsv4-spec 3.11)."""
    words = ("--preset", model, "--device-memory", "100GB", "--kv-cache-dtype", "fp8")
    plain, found = printed(capsys, *words), printed(capsys, *words, "--speculative", kind)
    assert found["ring_rows"] == rows
    assert found["draft_bytes_per_slot"] == layers * rows * 1024
    parts = ("ring_bytes_per_slot", "state4_bytes_per_slot", "state128_bytes_per_slot", "draft_bytes_per_slot")
    assert found["bytes_per_slot"] == sum(found[part] for part in parts)
    assert found["bytes_per_token"] == plain["bytes_per_token"]
    assert found["pool_bytes"] == found["slots_bytes"] + found["pages_bytes"] <= found["available_bytes"]
    assert found["pages"] < plain["pages"]
    other = {"mtp": "dspark", "dspark": "mtp"}[kind]
    assert main(["memory", "--preset", model, "--speculative", other]) == 2
    assert f"model {model} carries no such drafter" in capsys.readouterr().err


def test_other_page_sizes() -> None:
    for size in (128, 512):
        found = plan(MemoryWish(page_size=size, device_memory=30 * GB))
        assert found.to_json()["bytes_per_token"] == 6229
        assert found.geometry.page_size == size


def test_wishes_out_of_range() -> None:
    for field in ("device_memory", "max_running_requests", "max_total_tokens", "context_length", "verify_tokens"):
        with pytest.raises(ConfigError, match=f"{field} = 0: takes an integer >= 1"):
            MemoryWish(**{field: 0})
    with pytest.raises(ConfigError, match=r"mem_fraction_static = 0\.0: takes a number above 0"):
        MemoryWish(mem_fraction_static=0.0)
    with pytest.raises(ConfigError, match="weight_memory = -1"):
        MemoryWish(weight_memory=-1)


def test_the_table_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        main(
            [
                "memory",
                "--preset",
                "flash",
                "--device-memory",
                "141GB",
                "--weight-memory",
                "84GB",
                "--context-length",
                "131072",
            ]
        )
        == 0
    )
    out = capsys.readouterr().out
    assert "flash: unified layout, bf16 rows, fp8 index keys" in out
    assert re.search(r"token +6,229 +6\.08 KiB", out)
    assert re.search(r"pages \(one reserved\) +24,027", out)
    assert "46 of 256 requests fit at 131,072 tokens each." in out
    assert "40.0 GiB are available to the pool." in out


def test_snapshots_of_the_prefix_cache_come_off_what_pages_may_take(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--preset", "flash", "--device-memory", "80GiB", "--mem-fraction-static", "0.5")
    without = printed(capsys, *words)
    found = printed(capsys, *words, "--enable-prefix-cache", "--prefix-cache-bytes", "4GiB")
    assert (without["prefix_cache_bytes"], found["prefix_cache_bytes"]) == (0, 4 * 2**30)
    assert found["available_bytes"] == without["available_bytes"] - 4 * 2**30
    rings, states = 43 * 128 * 1024, 21 * 4 * (2048 + 512) * 4
    assert found["bytes_per_snapshot"] == rings + states, "spec 3.9: 5.6 MB and 0.86 MB"
    assert main(["memory", *words, "--enable-prefix-cache", "--prefix-cache-bytes", "40GiB"]) == 2
    assert "a prefix cache of 40.0 GiB leaves nothing of 40.0 GiB for the pool" in capsys.readouterr().err
