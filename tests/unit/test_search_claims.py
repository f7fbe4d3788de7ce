"""Claims: one worker per setting, and what becomes of the claims of the dead."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from dsv4lab.tuning.knobs import Setting
from dsv4lab.tuning.search.claims import Claims, Taken

HIP, CUDA, MOE = (Setting.of(plan=name) for name in ("hip", "cuda", "moe"))


class Watch:
    """A clock that only moves when it is told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[sa.Engine]:
    patient = {"timeout": 120.0}  # for the lock that others hold: a busy disk takes its time
    made = sa.create_engine(f"sqlite:///{tmp_path / 'study.db'}", connect_args=patient)
    yield made
    made.dispose()


def worker(engine: sa.Engine, name: str, life: str = "", budget: int = 10, watch: Watch | None = None) -> Claims:
    clock = watch or Watch()
    return Claims(engine, "s", name, life or f"{name}1", budget=budget, grace_s=10.0, clock=clock)


def test_a_setting_is_one_workers(engine: sa.Engine) -> None:
    a, b = worker(engine, "a"), worker(engine, "b")
    assert a.take("explore", HIP) is Taken.MINE
    assert b.take("explore", HIP) is Taken.OTHERS
    assert a.take("explore", HIP) is Taken.OTHERS  # not twice either
    assert b.take("confirm", HIP) is Taken.MINE  # another matter
    assert b.take("explore", CUDA) is Taken.MINE
    assert {(one.worker, one.phase, one.setting) for one in b.all()} == {
        ("a", "explore", HIP),
        ("b", "confirm", HIP),
        ("b", "explore", CUDA),
    }


def test_the_budget_is_for_all_workers_together(engine: sa.Engine) -> None:
    a, b = worker(engine, "a", budget=2), worker(engine, "b", budget=2)
    assert a.take("explore", HIP) is Taken.MINE
    assert b.take("explore", HIP) is Taken.OTHERS  # costs nothing
    assert b.take("explore", CUDA) is Taken.MINE
    assert a.take("explore", MOE) is Taken.NONE_LEFT
    assert a.take("confirm", MOE, counted=False) is Taken.MINE


def test_of_many_that_try_at_once_one_gets_it(engine: sa.Engine) -> None:
    names = [f"w{i}" for i in range(6)]
    claims = [worker(engine, name) for name in names]
    start = threading.Barrier(len(claims))
    got: list[tuple[str, Setting]] = []

    def run(name: str, own: Claims) -> None:
        start.wait()
        got.extend((name, s) for s in (HIP, CUDA, MOE) if own.take("explore", s) is Taken.MINE)

    threads = [threading.Thread(target=run, args=pair) for pair in zip(names, claims, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(setting.label for _, setting in got) == ["cuda", "hip", "moe"]


def test_who_stands_still_is_taken_over_once(engine: sa.Engine) -> None:
    watch = Watch()
    a, b, c = worker(engine, "a"), worker(engine, "b", watch=watch), worker(engine, "c", watch=watch)
    a.take("explore", HIP)
    (seen,) = b.all()
    c.all()
    watch.now = 9.0
    assert not b.stale(seen)
    a.beat()
    (seen,) = b.all()
    c.all()
    watch.now = 18.0
    assert not b.stale(seen)  # it moved meanwhile
    watch.now = 20.0
    assert b.stale(seen)
    assert b.take_over(seen)
    assert not c.take_over(seen)
    assert not a.finish("explore", HIP)  # it was not dead, but slow: its result does not count
    assert b.finish("explore", HIP, {"delta": 0.5})
    (done,) = c.all()
    assert (done.done, done.worker, done.result) == (True, "b", {"delta": 0.5})
    watch.now = 99.0
    assert not c.stale(done)


def test_a_beat_between_looking_and_taking_saves_the_claim(engine: sa.Engine) -> None:
    watch = Watch()
    a, b = worker(engine, "a"), worker(engine, "b", watch=watch)
    a.take("explore", HIP)
    (seen,) = b.all()
    watch.now = 11.0
    assert b.stale(seen)
    a.beat()
    assert not b.take_over(seen)
    assert a.finish("explore", HIP)


def test_an_earlier_life_of_the_same_worker_is_dead_at_once(engine: sa.Engine) -> None:
    first = worker(engine, "a", "a1")
    first.take("explore", HIP)
    second = worker(engine, "a", "a2")
    (seen,) = second.all()
    assert second.stale(seen)
    assert not first.stale(seen)


def test_a_thread_beats_for_the_open_claims(engine: sa.Engine) -> None:
    a = Claims(engine, "s", "a", "a1", budget=9, grace_s=0.02)
    a.take("explore", HIP)
    a.start()
    while a.all()[0].beats < 3:
        pass
    a.stop()
    before = a.all()[0].beats
    a.finish("explore", HIP)
    a.beat()
    assert a.all()[0].beats == before  # what is done needs no beats
