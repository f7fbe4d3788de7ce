"""Views of sessions, and the tables, pages and Markdown made of them."""

from __future__ import annotations

import argparse
import json
import random
import re
import shlex
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from dsv4lab.cli.main import command_parser, load_command
from dsv4lab.cli.model_args import engine_config
from dsv4lab.config.engine import EngineConfig
from dsv4lab.tuning import summary
from dsv4lab.tuning.framework import framework_of
from dsv4lab.tuning.knobs import Setting
from dsv4lab.tuning.launch import engine_lines, launch_lines, server_line
from dsv4lab.tuning.read_view import read_view
from dsv4lab.tuning.store import MANIFEST, RECORDS, StoreError, read_records
from dsv4lab.tuning.summary_markdown import markdown
from dsv4lab.tuning.summary_page import summary_page
from dsv4lab.tuning.view import BASELINE, CANDIDATE, FINISHED, MEASURING, SessionView
from tests.unit.searches import HIP, HOSTILE, SPACE, simulated
from tests.widgets.fake_session import Session

HIP_SETTING = Setting((("plan", "hip"), ("env:QUEUES", "4")))
PUBLISHED = (
    *("Concurrency", "TPOT before (ms)", "TPOT after (ms)", "ΔTPOT"),
    *("tok/s/GPU before", "tok/s/GPU after", "Δtok/s/GPU", "n", "95 % interval", "verdict"),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    def fails(setting: Setting) -> str | None:
        broken = setting.get("plan") == "cuda" and setting.get("env:QUEUES") != "4"
        return "crashed" if broken else None

    return simulated(tmp_path_factory.mktemp("search") / "session", fails=fails)


@pytest.fixture(scope="module")
def view(folder: Path) -> SessionView:
    return read_view(folder)


def test_a_search_as_rows_and_answers(view: SessionView) -> None:
    assert (view.kind, view.target, view.state, view.torn) == ("search", "simulated", FINISHED, 0)
    assert [load.get("concurrency") for load in view.loads] == [1, 4]
    assert len(view.rows) == SPACE.size
    for use in view.uses:
        assert (use.use, use.verdict, use.gained) == (HIP_SETTING, "faster", True)
        assert use.change is not None
        assert use.change.delta == pytest.approx(HIP, abs=0.01)
        assert use.tpot_ms[1] / use.tpot_ms[0] == pytest.approx(1 + HIP, abs=0.01)
        row = view.row(use.load, use.use)
        assert row is not None
        assert row.role == CANDIDATE
        assert len(row.pairs) >= use.change.pairs
        assert all(own < beside for own, beside in row.pairs)
    baselines = [row for row in view.rows if row.role == BASELINE]
    assert len(baselines) == 2
    assert all(row.verdict == BASELINE and row.change is None and row.measured for row in baselines)
    assert view.noise.repeat is not None


def test_failures_are_told_with_their_reason(view: SessionView) -> None:
    failed = [row for row in view.rows if row.verdict == "crashed"]
    assert {row.load.get("concurrency") for row in failed} == {1, 4}
    assert all("planted to fail" in text for text in summary.failures(view))
    assert len(summary.failures(view)) == len(failed)
    assert summary.gate_sentence(view) == "Greedy outputs are the same in all settings that have a figure."


def test_other_outputs_are_told(tmp_path: Path) -> None:
    wrong = read_view(simulated(tmp_path / "s", differs=lambda setting: setting.get("plan") == "hip"))
    assert {row.verdict for row in wrong.rows if row.setting.get("plan") == "hip"} == {"other outputs"}
    assert all(not use.gained for use in wrong.uses)
    assert "where the baseline gave" in summary.gate_sentence(wrong)
    assert summary.headline(wrong).startswith("Use off, QUEUES=4: no other setting")


def test_other_outputs_that_are_allowed_are_told_and_measured(tmp_path: Path) -> None:
    seen = read_view(simulated(tmp_path / "s", exact=False, differs=lambda setting: setting.get("plan") == "hip"))
    assert all(use.use == HIP_SETTING for use in seen.uses)
    assert len(seen.gates) == 4
    assert summary.gate_sentence(seen).startswith("Outputs differ in 4 comparisons: hip, QUEUES=4, concurrency 1")
    assert "What failed or differed" in summary_page(seen)


def test_the_published_table(view: SessionView) -> None:
    columns, rows = summary.published_table(view, view.uses)
    assert columns == PUBLISHED
    assert [row[0] for row in rows] == ["1", "4"]
    for row, use in zip(rows, view.uses, strict=True):
        assert row[1:3] == tuple(f"{ms:.2f}" for ms in use.tpot_ms)
        assert re.fullmatch(r"-[4-8]\.\d %", row[3])
        assert re.fullmatch(r"\+[4-8]\.\d %", row[6])
        assert row[7] == str(use.change.pairs if use.change else None)
        assert re.fullmatch(r"(-\d\.\d %|…) to -\d\.\d %", row[8])
        assert row[9] == "faster"


def test_what_was_tested_is_named_by_level(view: SessionView) -> None:
    assert summary.about_text(view.uses) == "Before: off, QUEUES=4. After: hip, QUEUES=4."
    mixed = [view.uses[0], replace(view.uses[1], candidate=Setting.of(plan="cuda"))]
    assert summary.about_text(mixed) == "Before: off, QUEUES=4. After: hip, QUEUES=4 at 1; cuda at 4."
    assert "nothing was tested" in summary.about_text([replace(view.uses[0], candidate=None)])


def test_markdown_is_a_table_whatever_the_names(view: SessionView) -> None:
    text = markdown(view)
    tables = [block for block in text.split("\n\n") if block.startswith("|")]
    assert len(tables) == 2
    for block in tables:
        bars = {len(re.findall(r"(?<!\\)\|", line)) for line in block.splitlines()}
        assert len(bars) == 1
    assert "<img" not in text
    assert "**Use hip, QUEUES=4.**" in text


def test_the_page_is_safe_and_whole(view: SessionView) -> None:
    page = summary_page(view)
    body = page[page.index("<body>") :]
    assert HOSTILE not in page
    assert "<img" not in re.sub(r"<script.*?</script>", "", body, flags=re.DOTALL)
    assert body.count("plotly-graph-div") == 2
    text = re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL)
    assert not re.search(r"(?:src|href)=[\"']https?:", text)
    for said in ("Before and after", "All settings", "What failed or differed", "Manifest", "planted to fail"):
        assert said in body


def test_a_session_that_has_not_ended(folder: Path, tmp_path: Path) -> None:
    lines = (folder / RECORDS).read_bytes().splitlines(keepends=True)
    kinds = [json.loads(line)["kind"] for line in lines]
    half = tmp_path / "half"
    half.mkdir()
    shutil.copy(folder / MANIFEST, half)
    (half / RECORDS).write_bytes(b"".join(lines[: kinds.index("candidate")]))
    seen = read_view(half)
    assert seen.state == MEASURING
    assert all(use.verdict.endswith("not confirmed") and not use.gained for use in seen.uses)
    assert "has not ended" in summary.headline(seen)
    (half / RECORDS).write_bytes(lines[0])
    assert read_view(half).rows == ()
    assert "Nothing has been compared yet" in markdown(read_view(half))
    summary_page(read_view(half))


def test_a_cut_anywhere_loses_the_line_in_flight_and_no_more(folder: Path, tmp_path: Path) -> None:
    whole = (folder / RECORDS).read_bytes()
    every, torn = read_records(folder / RECORDS)
    assert torn == 0
    shutil.copy(folder / MANIFEST, tmp_path)
    ends = [at + 1 for at, byte in enumerate(whole) if byte == ord("\n")]
    chance = random.Random(3)
    cuts = {chance.randrange(len(whole)) for _ in range(60)} | {end + d for end in ends[-12:] for d in (-2, -1, 0, 1)}
    for cut in sorted(cut for cut in cuts if cut <= len(whole)):
        (tmp_path / RECORDS).write_bytes(whole[:cut])
        complete = sum(end <= cut + 1 for end in ends)
        records, lost = read_records(tmp_path / RECORDS)
        assert records == every[:complete]
        assert lost <= 1
        seen = read_view(tmp_path)
        blocks = sum(r["kind"] == "block" and r["phase"] != "warm-up" and r["outcome"] == "ok" for r in records)
        assert sum(len(row.samples) for row in seen.rows) == blocks


def test_a_sweep_in_the_same_form(tmp_path: Path) -> None:
    session = Session(tmp_path / "sweep")
    session.explore()
    session.confirm()
    session.finish()
    session.store.close()
    seen = read_view(tmp_path / "sweep")
    assert (seen.kind, seen.target, seen.state, seen.gpus) == ("sweep", "engine", FINISHED, 1)
    assert [load.get("concurrency") for load in seen.loads] == [1, 2]
    hip = Setting.of(plan="hip", hw_queues=4)
    assert [(use.use, use.verdict) for use in seen.uses] == [(hip, "faster")] * 2
    assert summary.headline(seen) == "Use hip, 4 queues."
    page = summary_page(seen)
    assert "<img" not in re.sub(r"<script.*?</script>", "", page[page.index("<body>") :], flags=re.DOTALL)
    lines = [line.line for line in launch_lines(seen)]
    assert lines == [
        "dsv4lab serve --preset tiny --plan hip --hw-queues 4 --max-running-requests 2 --max-total-tokens 16384",
        "dsv4lab run --preset tiny --concurrency 2 --prompt-tokens 8 --max-new-tokens 4 --plan hip --hw-queues 4",
    ]


def test_no_session_and_another_kind(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="there is no session"):
        read_view(tmp_path)
    (tmp_path / MANIFEST).write_text(json.dumps({"schema": 1, "settings": {}}))
    with pytest.raises(StoreError, match="no sweep's and no search's"):
        read_view(tmp_path)


def test_launch_lines_of_servers() -> None:
    facts = {"command": "python -m sglang.launch_server --port {port} {flags} --tp 8", "flags": ["--x"], "env": {}}
    setting = Setting((("env:A", "1"), ("env:B", None), ("flag:--y", "p q"), ("flag:--z", True), ("flag:--no", None)))
    line = "env -u B A=1 python -m sglang.launch_server --port 30000 --x --y 'p q' --z --tp 8"
    assert server_line(facts, setting) == line
    assert server_line({"command": "vllm serve m --port {port}"}, Setting()) == "vllm serve m --port 8000"
    found = {c: framework_of(c) for c in ("vllm serve m", "python -m sglang.launch_server", "dsv4lab serve", "./srv")}
    assert list(found.values()) == ["vLLM", "sglang", "dsv4lab", "this server"]


def test_launch_lines_of_the_engine() -> None:
    facts = {"model": "tiny", "dtype": "bfloat16"}
    setting = Setting((("plan", "hip"), ("hw_queues", 4), ("env:GPU", "1")))
    serve, run = engine_lines(facts, setting, Setting.of(concurrency=8))
    options = "--preset tiny --dtype bfloat16"
    assert serve == f"GPU=1 dsv4lab serve {options} --plan hip --hw-queues 4 --max-running-requests 8"
    assert run == f"GPU=1 dsv4lab run {options} --concurrency 8 --plan hip --hw-queues 4"
    own = {**facts, "plans": {"mine": {"name": "mine", "rules": []}}}
    (line,) = engine_lines(own, Setting.of(plan="mine"), Setting())
    assert line == "lab.open('tiny', dtype='bfloat16', plan={'name': 'mine', 'rules': []})"


def test_launch_lines_of_a_gpu_start_the_same_engine() -> None:
    facts = EngineConfig("flash", device="cuda:1", dtype="bfloat16", num_layers=6, weights="stored", graphs=False)
    setting = Setting.of(plan="cuda+moe", hw_queues=8)
    _, run = engine_lines(facts.to_json(), setting, Setting.of(concurrency=4))
    device = "--device cuda:1 --layers 6 --dtype bfloat16 --weights stored --no-graphs"
    assert run == f"dsv4lab run --preset flash {device} --concurrency 4 --plan cuda+moe --hw-queues 8"
    args = command_parser(load_command("run")).parse_args(shlex.split(run)[2:])
    assert (args.device, args.layers, args.no_graphs, args.weights) == ("cuda:1", 6, True, "stored")
    (own,) = engine_lines(facts.to_json(), Setting.of(plan="off", high_priority_main=True), Setting())
    assert own == (
        "lab.open('flash', device='cuda:1', num_layers=6, dtype='bfloat16', weights='stored', graphs=False, "
        "plan='off', high_priority_main=True)"
    )


def test_launch_lines_keep_all_that_a_session_can_set() -> None:
    """Whatever `tune` gives the engine beside its knobs: a line that forgets one starts another engine."""
    model = "--preset demo --layers 3 --seed 7 --dtype bfloat16 --weights stored"
    pool = "--kv-cache-dtype fp8 --index-cache-dtype fp8 --kv-layout three_pool --chunked-prefill-size 1024"
    ranks = "--tp-size 2 --dp-size 2 --enforce-shared-experts-fusion --graph-max-bs 4"
    asked = command_parser(load_command("tune")).parse_args(shlex.split(f"{model} {pool} {ranks}"))
    config = one_value(asked)
    for line in engine_lines(config.to_json(), Setting.of(plan="hip", hw_queues=4), Setting.of(concurrency=2)):
        name, *rest = shlex.split(line)[1:]
        again = one_value(command_parser(load_command(name)).parse_args(rest))
        assert again == replace(config, max_total_tokens=again.max_total_tokens)


def one_value(args: argparse.Namespace) -> EngineConfig:
    """The engine of a command line with plan ``hip`` on four queues for two requests."""
    sizes = {"prompt_tokens": 32, "max_new_tokens": 8, "queue_policy": "round_robin", "side_streams": None}
    return engine_config(argparse.Namespace(**{**vars(args), **sizes}), 2, plan="hip", hw_queues=4)


def test_a_simulation_recommends_no_launch_line(view: SessionView) -> None:
    assert launch_lines(view) == []
    assert "says nothing about any machine" in summary.scope_text(view)
