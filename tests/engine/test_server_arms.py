"""Servers as the target of a search session: one process per setting, outcomes, profiles, whole sessions."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dsv4lab.errors import EngineError, TimeoutExceededError, UnavailableError, UsageError, WorkerDiedError
from dsv4lab.load.process import ServerSpec
from dsv4lab.tuning.block import CRASHED, FAILED, HUNG, OK
from dsv4lab.tuning.knobs import LOAD, PROCESS, Knob, KnobSpace, Setting
from dsv4lab.tuning.launch import launch_lines
from dsv4lab.tuning.read_view import read_view
from dsv4lab.tuning.search.plan import GRID, Effort, SearchPlan
from dsv4lab.tuning.search.session import run_search
from dsv4lab.tuning.server_arms import ServerArms
from dsv4lab.tuning.server_plan import ServerPlan, hidden
from tests.engine.conftest import worker_path

WRONG = Path(__file__).with_name("wrong_server.py")
COMMAND = shlex.join([sys.executable, str(WRONG)]) + " {port} right {flags}"
Gone = Callable[[int], bool]
Open = Callable[..., ServerArms]


def how(name: str, concurrency: int = 1) -> Setting:
    return Setting((("env:HOW", name), ("concurrency", concurrency)))


@pytest.fixture
def arms(tmp_path: Path) -> Iterator[Open]:
    opened: list[ServerArms] = []

    def make(*, spec: dict[str, Any] | None = None, **fields: Any) -> ServerArms:
        env = {"TRACES": str(tmp_path)}
        asked = {"start_s": 60.0, "stop_s": 5.0, **(spec or {})}
        server = ServerSpec(COMMAND, env=env, profile_dir=tmp_path, **asked)
        own = {"waves": 2, "prompt_tokens": 4, "max_new_tokens": 2, **fields}
        opened.append(ServerArms(ServerPlan(server, tmp_path, **own)))
        return opened[-1]

    yield make
    for one in opened:
        one.close()


def test_a_process_lives_as_long_as_only_loads_change(arms: Open) -> None:
    target = arms()
    first = target.prepare(how("right"))
    assert target.prepare(how("right", 3)) == first
    measured = target.measure(how("right", 3), seed=5)
    assert (measured.outcome, measured.process, measured.tokens) == (OK, first, "")
    assert len(measured.ttft_ms) == measured.extra["requests"] == 6
    assert measured.tokens_per_s > 0
    other = target.prepare(how("other words"))
    assert other != first
    with pytest.raises(EngineError, match="does not run"):
        target.measure(how("right"), seed=5)
    assert target.prepare(how("right")) not in (first, other)


def test_fresh_and_parallel(arms: Open, gone: Gone) -> None:
    target = arms(alive=2)
    first, second = target.prepare(how("right")), target.prepare(how("other words"))
    pids = [life.server.process.pid for life in target._lives.values()]
    assert (target.prepare(how("right")), target.prepare(how("other words"))) == (first, second)
    assert target.prepare(how("right"), fresh=True) not in (first, second)
    assert gone(pids[0])
    target.prepare(how("breaks off and is not asked"))
    assert len(target._lives) == 2
    target.close()
    assert all(map(gone, pids))


def test_outputs_and_their_difference(arms: Open) -> None:
    target = arms()
    found = []
    for name in ("right", "other words"):
        target.prepare(how(name))
        found.append(target.outputs(how(name)))
    assert found[0].tokens == (("a", "b"), ("a", "b"))
    assert found[0].difference(found[0]) is None
    why = found[0].difference(found[1])
    told = "prompt 0, new token 1: 'c' where the baseline gave 'b' (log-probabilities differ by 0.25 there, "
    assert why == f"{told}0 at most before)"


def test_what_goes_wrong_while_it_starts(arms: Open) -> None:
    target = arms()
    with pytest.raises(
        WorkerDiedError, match=r"exit code 4; its last lines were:\n.*\n  no such model\n  log: server-000"
    ):
        target.prepare(how("dies"))
    with pytest.raises(TimeoutExceededError, match="not healthy within 1 s; still running"):
        arms(spec={"start_s": 1.0}).prepare(how("never healthy"))
    with pytest.raises(UsageError, match="knob plan: a server takes"):
        target.prepare(Setting.of(plan="hip"))
    missing = ServerArms(replace(target.plan, server=ServerSpec("no-such-server {port}")))
    with pytest.raises(UnavailableError, match="no-such-server"):
        missing.prepare(how("right"))


@pytest.mark.parametrize(
    ("name", "outcome", "says", "silence_s"),
    [
        ("crashes", CRASHED, "a planted crash", 60.0),
        ("breaks off", FAILED, "the stream broke off", 60.0),
        ("hangs", HUNG, "nothing came for 0.5 s", 0.5),
    ],
)
def test_what_goes_wrong_under_load(arms: Open, name: str, outcome: str, says: str, silence_s: float) -> None:
    target = arms(warmup=0, silence_s=silence_s)
    target.prepare(how(name))
    measured = target.measure(how(name), seed=0)
    assert measured.outcome == outcome
    assert says in (measured.why or "")
    assert "started with ['right']" in (measured.why or "")
    assert not target._lives


def test_profiles(arms: Open, tmp_path: Path) -> None:
    target = arms()
    target.prepare(how("right"))
    found = target.profile(how("right"), tmp_path)
    assert found is not None
    assert (tmp_path / found.trace).is_file()
    assert found.busy.wall_ns > 0
    assert not target._lives
    with pytest.raises(EngineError, match="/start_profile: status 404"):
        target.profile(how("no profiles"), tmp_path)
    assert arms(profile_requests=0).profile(how("right"), tmp_path) is None


def test_environment_and_flags(arms: Open) -> None:
    plan = arms().plan
    setting = Setting((("env:A", "1"), ("env:B", None), ("flag:--x", "p q"), ("flag:--y", True), ("flag:--n", None)))
    server = plan.of(setting)
    assert server.flags == ("--x", "p q", "--y")
    assert (server.env["A"], server.env["B"]) == ("1", None)


def test_facts_hold_no_secret(tmp_path: Path) -> None:
    spec = ServerSpec("srv --api-key s3cret --tokenizer t", env={"HF_TOKEN": "s3cret", "A": "1"}, api_key="s3cret")
    facts = ServerPlan(spec, tmp_path).facts
    assert "s3cret" not in str(facts)
    assert (facts["command"], facts["env"]) == ("srv --api-key *** --tokenizer t", {"HF_TOKEN": "***", "A": "1"})
    assert hidden("srv --password='a b' --max-total-tokens 5") == "srv --password=*** --max-total-tokens 5"


def test_plans_are_checked(tmp_path: Path) -> None:
    spec = ServerSpec("srv {port}")
    for fields, says in (
        ({"waves": 0}, "waves is 0"),
        ({"alive": 0}, "alive is 0"),
        ({"range_ratio": 2.0}, "range_ratio"),
    ):
        with pytest.raises(UsageError, match=says):
            ServerPlan(spec, tmp_path, **fields)  # type: ignore[arg-type]


def test_a_session_on_servers(arms: Open, tmp_path: Path) -> None:
    space = KnobSpace(
        (Knob("env:HOW", ("right", "other words", "dies", "crashes"), PROCESS), Knob("concurrency", (2,), LOAD)),
        Setting((("env:HOW", "right"),)),
    )
    plan = SearchPlan(space, GRID, Effort(explore_pairs=1, confirm_pairs=1))
    target = arms(alive=2)
    run_search(plan, target, tmp_path / "session")
    view = read_view(tmp_path / "session")
    assert (view.target, view.state) == ("server", "finished")
    verdicts = {(row.label, row.verdict) for row in view.rows}
    assert {("HOW=other words", "other outputs"), ("HOW=dies", "died at start")} <= verdicts
    assert {verdict for label, verdict in verdicts if label == "HOW=crashes"} == {"crashed"}
    assert "new token 1: 'c' where the baseline gave 'b'" in view.gates[0]
    (line,) = launch_lines(view)
    assert line.line.startswith(f"TRACES={tmp_path} HOW=right {shlex.quote(sys.executable)}")
    (profile,) = view.profiles
    assert (profile.role, profile.busy.wall_ns > 0, Path(profile.trace).parent) == ("baseline", True, tmp_path)


def test_a_killed_session_takes_its_server_with_it(tmp_path: Path, gone: Gone) -> None:
    code = (
        "import os, signal, sys; from pathlib import Path; from dsv4lab.load.process import ServerProcess, ServerSpec; "
        "server = ServerProcess.start(ServerSpec(sys.argv[1], stop_s=5.0), Path(sys.argv[2])); "
        "print(server.pid, flush=True); os.kill(os.getpid(), signal.SIGKILL)"
    )
    environ = {**os.environ, "PYTHONPATH": worker_path()}
    words = [sys.executable, "-c", code, COMMAND, str(tmp_path / "log")]
    done = subprocess.run(words, env=environ, stdout=subprocess.PIPE, check=False)
    assert done.returncode == -signal.SIGKILL
    assert gone(int(done.stdout))
