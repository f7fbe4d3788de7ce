"""``dsv4lab tune --search``: options to a plan, and a session's result in words. Real engines are in tests/engine."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dsv4lab.cli import search_args, tune, tune_search
from dsv4lab.cli.main import command_parser, load_command, main
from dsv4lab.engine import devices, settings
from dsv4lab.env import VARIABLES
from dsv4lab.errors import UsageError
from dsv4lab.tuning.arm_target import ArmTarget
from dsv4lab.tuning.block import CRASHED
from dsv4lab.tuning.knobs import LIVE, LOAD, PROCESS, Knob, KnobSpace, Setting
from dsv4lab.tuning.search import text
from dsv4lab.tuning.search.forecast import Forecast
from dsv4lab.tuning.search.outcome import SearchResult
from dsv4lab.tuning.search.plan import GRID, PARETO, Effort, SearchPlan
from dsv4lab.tuning.search.session import run_search
from dsv4lab.tuning.simulated_arms import SimulatedArms, SimulatedNoise, additive

SPACE = KnobSpace(
    (
        Knob("plan", ("off", "hip", "cuda"), LIVE),
        Knob("hw_queues", (4,), PROCESS),
        Knob("concurrency", (1, 8), LOAD),
        Knob("prompt_tokens", (32,), LOAD),
    ),
    Setting.of(plan="off", hw_queues=4),
)
EFFECT = additive({"plan": {"hip": -0.05, "cuda": 0.02}})


def parsed(*words: str) -> argparse.Namespace:
    return command_parser(load_command("tune")).parse_args(words)


def asked(*words: str) -> tuple[SearchPlan, Any]:
    args = parsed(*words)
    assert search_args.is_search(args)
    plan, target, prior = tune_search._asked(args, Path("never-made"))
    return plan, (target, prior)


def test_options_make_knobs_a_baseline_and_a_budget() -> None:
    words = "--search tpe --plans hip,off --hw-queues 2,4 --side-streams planned,1 --queue-policy refcount,round_robin"
    more = "--concurrency 1,8 --prompt-tokens 16,32 --max-new-tokens 6 --env A=1,unset --trials 7 --time 90 --alpha 5%"
    plan, (target, prior) = asked(*words.split(), *more.split(), "--least", "0.02", "--confirm", "12", "--pairs", "4")
    assert plan.space.tuned_names == ("plan", "hw_queues", "side_streams", "queue_policy", "env:A")
    assert plan.space.load_names == ("concurrency", "prompt_tokens", "max_new_tokens")
    assert plan.space.baseline.label == "off, 2 queues, side streams as planned, refcount, A=1"
    assert (plan.method, plan.trials, plan.seconds) == ("tpe", 7, 90.0)
    assert plan.effort == Effort(0.05, 0.02, 4, 12)
    assert target.name == "engine"
    assert prior.name.startswith("the queue model, from a profile")
    config = target.config_of(next(iter(plan.space.grid())))
    assert config.max_running_requests == 8
    assert config.max_total_tokens >= 2 * 8 * 256


def test_the_baseline_can_be_another_and_a_gpu_can_say_where_to_begin() -> None:
    plan, (_, prior) = asked(
        "--search", "grid", "--baseline", "hw_queues=4", "--baseline", "plan=hip", "--prior", "mi355x:pro"
    )
    assert plan.space.baseline == Setting.of(plan="hip", hw_queues=4)
    assert "pro on mi355x" in prior.name
    assert asked("--search", "grid", "--prior", "none")[1][1] is None


@pytest.fixture
def hopper(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with one GPU, where no variable is set."""
    for variable in VARIABLES.values():
        monkeypatch.delenv(variable, raising=False)
    found = [{"kind": "cpu", "name": "c", "blackwell": False}, {"kind": "cuda", "name": "H200", "blackwell": False}]
    for module in (settings, devices):
        monkeypatch.setattr(module, "find_devices", lambda: (found, []))


@pytest.mark.usefixtures("hopper")
def test_a_gpu_is_searched_with_its_own_defaults() -> None:
    words = "--preset flash --layers 6 --weights stored --device cuda --search grid --plans off,cuda+moe,side,auto"
    more = "--baseline plan=auto --concurrency 1,64 --graph-max-bs 32 --knob high_priority_main=false,true"
    plan, (target, prior) = asked(*words.split(), *more.split())
    assert plan.space.knob("hw_queues").values == (8,)
    assert plan.space.baseline.get("plan") == "auto"
    assert prior is None
    config = target.config_of(plan.space.join(plan.space.baseline, plan.space.strata()[1]))
    assert (config.device, config.dtype, config.num_layers, config.graph_max_bs) == ("cuda", "bfloat16", 6, 32)
    assert (config.plan, config.token_gate, config.max_running_requests) == ("auto", None, 64)
    assert target.facts["gpu"] == "H200"
    several, _ = asked("--search", "grid", "--device", "cuda", "--hw-queues", "1,8", "--no-graphs")
    assert several.space.knob("hw_queues").values == (1, 8)
    on_cpu, _ = asked("--search", "grid", "--layers", "2")
    assert on_cpu.space.knob("hw_queues").values == (1, 2, 4)


def test_a_server_takes_the_place_of_the_engine() -> None:
    plan, (target, prior) = asked("--server", "serve {port}", "--env", "A=1,2", "--flag=--tp=1,2", "--concurrency", "4")
    arms: ArmTarget = target
    assert (arms.name, plan.method, prior) == ("server", "grid", None)
    assert plan.space.baseline == Setting.from_json({"env:A": "1", "flag:--tp": "1"})


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--trials 3", "--trials: it needs --search"),
        ("--device cuda", "--device cuda: a sweep compares queue threads of the CPU device"),
        ("--device gpu --search grid", "'gpu'"),
        ("--device cuda:7 --search grid", "device 'cuda:7' is not"),
        ("--server x --env A=1,2 --device hip", "--device hip: it is of the engine"),
        ("--env A=1,2", "--env: it needs --search"),
        ("--search tpe --rounds 2", "--rounds: it is for the sweep"),
        ("--search tpe --no-control", "--no-control: it is for the sweep"),
        ("--search tpe --study-name x", "--study-name: it needs --study"),
        ("--search tpe --alpha 2", "--alpha: got '2'"),
        ("--search tpe --time soon", "--time: got 'soon'"),
        ("--search tpe --side-streams few", "--side-streams: got 'few'"),
        ("--search tpe --queue-policy best", "--queue-policy: got 'best'"),
        ("--search tpe --knob graphs=true,false", "knob graphs: it is of GPUs"),
        ("--search tpe --knob turbo=1", "no such knob"),
        ("--search tpe --knob graphs", "--knob graphs: it takes"),
        ("--search tpe --baseline plan=moe", "--baseline plan=moe: plan takes one of off, hip, cuda"),
        ("--search tpe --baseline tp=8", "knob tp: there is none"),
        ("--search tpe --prior mi355", "mi355"),
        ("--search tpe --study nonsense", "--study: it takes a database URL"),
        ("--side-streams 1,2", "--side-streams: several values need --search"),
        ("--prompt-tokens 8,16", "--prompt-tokens: several values need --search"),
    ],
)
def test_what_does_not_go_together_is_said(
    words: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = main(["tune", "--preset", "tiny", *words.split(), "--out", str(tmp_path / "s")])
    assert code == 2
    assert said in capsys.readouterr().err.replace("\n", " ")
    assert not (tmp_path / "s").exists()


class Told:
    name = "told"

    def forecasts(self, space: KnobSpace) -> list[Forecast]:
        return [Forecast(s, EFFECT(s)) for s in space.grid()]


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> SearchResult:
    plan = SearchPlan(SPACE, GRID, Effort(explore_pairs=6, confirm_pairs=16, warm_loads=0))
    fails = {("cuda", 8): CRASHED}
    arms = SimulatedArms(
        SPACE,
        EFFECT,
        SimulatedNoise(sd=0.004),
        fails=lambda s: fails.get((str(s.get("plan")), int(s.get("concurrency") or 0))),
    )
    return run_search(plan, arms, tmp_path_factory.mktemp("session"), prior=Told(), resume=False)


def test_a_result_is_told_by_load_with_forecast_and_measurement_side_by_side(result: SearchResult) -> None:
    first, second = result.levels
    assert text.headline(SPACE, first).startswith("concurrency 1: use hip. TPOT -")
    assert "fresh pairs" in text.headline(SPACE, first)
    rows = text.best_rows(result, second.load)
    assert [row[0] for row in rows] == ["hip"]  # cuda crashed there
    assert rows[0][1] == "-5.0 %"
    assert text.effort_text(result) == "Tried 4 of 4 settings beside the baseline; 1 failed."
    assert text.failure_lines(result) == ["cuda, concurrency 8: crashed: planted to fail: crashed"]
    assert "rank correlation +" in text.forecast_text(result)
    assert [row[0] for row in text.level_rows(result)] == ["concurrency 1", "concurrency 8"]
    assert json.loads(json.dumps(result.to_json(), default=str))["levels"][0]["verdict"] == "faster"


def test_without_plotly_the_session_ends_well_and_says_who_draws_its_page(result: SearchResult) -> None:
    code = (
        "import sys; from importlib.machinery import PathFinder as P; find = P.find_spec\n"
        "P.find_spec = lambda name, *more: None if name == 'plotly' else find(name, *more)\n"
        "from pathlib import Path; from dsv4lab.cli.tune_search import _report\n"
        "print(_report(Path(sys.argv[1])))"
    )
    ran = subprocess.run([sys.executable, "-c", code, str(result.folder)], capture_output=True, text=True)
    assert (ran.returncode, ran.stdout) == (0, "None\n")
    assert f"dsv4lab report {result.folder} --html" in " ".join(ran.stderr.split())


def test_a_plan_that_is_picked_by_measuring_graphs_needs_them() -> None:
    with pytest.raises(UsageError, match="--plans auto: it measures graphs on GPUs, with dp_size 1"):
        asked("--search", "grid", "--plans", "off,auto")
    with pytest.raises(UsageError, match="--plans auto"):
        asked("--search", "grid", "--plans", "off,auto", "--device", "cuda", "--no-graphs")


def test_what_time_did_not_allow_is_told(result: SearchResult) -> None:
    assert result.trials == result.choices == 4
    assert text.effort_text(replace(result, plan=replace(result.plan, seconds=9.0))).startswith("Tried 4 of 4 settings")
    short = replace(result, plan=replace(result.plan, seconds=9.0), trials=3)
    assert text.effort_text(short).startswith("Tried 3 of 4 settings beside the baseline in the time given")
    assert "in the time given" not in text.effort_text(replace(result, trials=3))


def test_a_sweep_tells_the_time_that_is_left_by_its_own_loads() -> None:
    now, shown = [0.0], list[tuple[int, str]]()

    def advance(steps: int = 1, note: str | None = None) -> None:
        shown.append((steps, note or ""))

    tell = tune._telling(advance, 10, lambda: now[0])
    tell(4, "continuing")  # of an earlier run: nothing is known of the pace
    for _ in range(3):
        now[0] += 5.0
        tell(1, "hip, 4 queues, concurrency 4, and a name that is far too long")
    assert [steps for steps, _ in shown] == [4, 1, 1, 1]
    assert len({len(note) for _, note in shown}) == 1
    assert shown[0][1].split() == ["continuing"]
    assert shown[-1][1].endswith("15 s left")


def test_other_answers_are_told_too(result: SearchResult) -> None:
    level = result.levels[0]
    assert level.confirmation is not None
    none = replace(level, use=level.baseline, verdict="nothing better", confirmation=None, candidate=None)
    assert text.headline(SPACE, none) == "concurrency 1: stay with off; none of 2 settings came out ahead."
    same = replace(level, use=level.baseline, verdict="no difference")
    assert text.headline(SPACE, same).startswith("concurrency 1: stay with off. No difference: hip gave TPOT -")
    open_ = replace(
        same,
        verdict="undecided",
        confirmation=replace(level.confirmation, stopped="its part of the session's time is over"),
    )
    assert text.headline(SPACE, open_).endswith("; its part of the session's time is over.")
    failed = replace(same, verdict="failed", confirmation=replace(level.confirmation, delta=None, why="it died"))
    assert text.headline(SPACE, failed).endswith("hip could not be confirmed: it died.")


def test_ranks_are_compared_with_ties_in_the_middle() -> None:
    assert text.rank_correlation([1, 2, 3], [10, 20, 30]) == pytest.approx(1.0)
    assert text.rank_correlation([1, 2, 3], [3, 2, 1]) == pytest.approx(-1.0)
    assert text.rank_correlation([1, 1, 2, 2], [1, 2, 3, 4]) == pytest.approx(0.894427, abs=1e-5)
    assert text.rank_correlation([1, 1], [1, 2]) is None


def test_what_is_printed_fits_a_terminal(
    result: SearchResult, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    tune_search._print(replace(result, plan=replace(result.plan, method=PARETO), folder=Path("traces/s")))
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= 80
    for part in (
        "Explored under concurrency 1",
        "Confirmed by fresh pairs",
        "none beats in both",
        "concurrency 8: use hip",
    ):
        assert part in shown


def test_percentages_are_fractions() -> None:
    assert search_args.fraction("--least")("1.5%") == pytest.approx(0.015)
    with pytest.raises(UsageError):
        search_args.fraction("--least")("100%")
