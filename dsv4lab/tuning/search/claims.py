"""Who measures what: one row per setting in the study's database, so that no two workers measure the same one.

A claim is an insert under a primary key, so the database lets one worker have it. Whoever holds a claim counts it up
while it measures; another worker that watches a count stand still for the grace period takes the claim over. Counts are
watched by the watcher's own clock: clocks of machines and of the database play no part. (Optuna's own heartbeats are
sent and looked after by ``Study.optimize`` only, not by ask and tell, and do not keep two workers from one setting.)
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError, SQLAlchemyError

from dsv4lab.tuning.knobs import Setting

_METADATA = sa.MetaData()
_STUDIES = sa.Table(
    "dsv4lab_studies",
    _METADATA,
    sa.Column("study", sa.String(200), primary_key=True),
    sa.Column("counted", sa.Integer, nullable=False),
)
_CLAIMS = sa.Table(
    "dsv4lab_claims",
    _METADATA,
    sa.Column("study", sa.String(200), primary_key=True),
    sa.Column("key", sa.String(80), primary_key=True),
    sa.Column("phase", sa.String(20), nullable=False),
    sa.Column("setting", sa.Text, nullable=False),
    sa.Column("worker", sa.String(64), nullable=False),
    sa.Column("life", sa.String(64), nullable=False),
    sa.Column("done", sa.Boolean, nullable=False),
    sa.Column("beats", sa.Integer, nullable=False),
    sa.Column("number", sa.Integer),
    sa.Column("result", sa.Text),
)
TRIES = 5


class Taken(StrEnum):
    """Whether a claim was got."""

    MINE = "mine"
    OTHERS = "others"
    NONE_LEFT = "none left"


@dataclass(frozen=True, slots=True)
class Held:
    """A row: a setting that ``worker`` measures or, if ``done``, has measured.

    ``number``: its trial in Optuna's study. ``result``: what its worker left for the others, as plain data.
    """

    key: str
    phase: str
    setting: Setting
    worker: str
    life: str
    done: bool
    beats: int
    number: int | None
    result: Any


def key_of(phase: str, setting: Setting) -> str:
    """The name of a claim."""
    text = json.dumps([phase, setting.to_json()], sort_keys=True)
    return f"{phase}-{hashlib.sha256(text.encode()).hexdigest()[:40]}"


class Claims:
    """The claims of one study as ``worker`` in this ``life`` of its process sees them.

    ``budget`` claims that count are given out in all, over every worker. With ``grace_s`` a thread counts up the claims
    of this worker four times in that period, from :meth:`start` on.
    """

    def __init__(
        self,
        engine: sa.Engine,
        study: str,
        worker: str,
        life: str,
        *,
        budget: int,
        grace_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engine, self._study, self._worker, self._life = engine, study, worker, life
        self._budget, self.grace_s, self._clock = budget, grace_s, clock
        self._seen: dict[str, tuple[str, int, float]] = {}  # key to life, beats, and when that was first seen
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        _create(engine)
        with contextlib.suppress(IntegrityError), engine.begin() as link:
            link.execute(sa.insert(_STUDIES).values(study=study, counted=0))

    def take(self, phase: str, setting: Setting, *, counted: bool = True) -> Taken:
        """Try to get ``setting`` for this worker. Of all that try, one gets :attr:`Taken.MINE`."""
        row = {
            "study": self._study,
            "key": key_of(phase, setting),
            "phase": phase,
            "setting": json.dumps(setting.to_json()),
            "worker": self._worker,
            "life": self._life,
            "done": False,
            "beats": 0,
        }
        with contextlib.suppress(IntegrityError), self._engine.begin() as link:
            if counted:
                left = (_STUDIES.c.study == self._study) & (_STUDIES.c.counted < self._budget)
                more = sa.update(_STUDIES).where(left).values(counted=_STUDIES.c.counted + 1)
                if link.execute(more).rowcount == 0:
                    return Taken.NONE_LEFT
            link.execute(sa.insert(_CLAIMS).values(**row))
            return Taken.MINE
        return Taken.OTHERS

    def take_over(self, held: Held) -> bool:
        """Try to get a claim whose worker is gone; False if another got it first, or the worker was not gone."""
        mine = {"worker": self._worker, "life": self._life, "beats": held.beats + 1, "number": None}
        same = (_CLAIMS.c.life == held.life) & (_CLAIMS.c.beats == held.beats) & ~_CLAIMS.c.done
        with self._engine.begin() as link:
            return link.execute(sa.update(_CLAIMS).where(self._row(held.key), same).values(**mine)).rowcount == 1

    def number(self, phase: str, setting: Setting, number: int) -> None:
        """Note the trial of Optuna's study that belongs to a claim of this worker."""
        self._update(key_of(phase, setting), number=number)

    def finish(self, phase: str, setting: Setting, result: Any = None) -> bool:
        """Mark a claim of this worker as done; False if it was taken over meanwhile."""
        return self._update(key_of(phase, setting), done=True, result=json.dumps(result))

    def all(self) -> list[Held]:
        """Every claim of the study, and a look at who is alive (see :meth:`stale`)."""
        with self._engine.connect() as link:
            rows = link.execute(sa.select(_CLAIMS).where(_CLAIMS.c.study == self._study)).mappings().all()
        held = [_held(row) for row in rows]
        self._watch(held)
        return held

    def stale(self, held: Held) -> bool:
        """Whether the holder is gone: an earlier life of this very worker, or one that has stood still for too long."""
        if held.done or held.life == self._life:
            return False
        if held.worker == self._worker:
            return True
        _, _, since = self._seen.get(held.key, (held.life, held.beats, self._clock()))
        return self._clock() - since > self.grace_s

    def beat(self) -> None:
        """Count up the open claims of this worker."""
        own = (_CLAIMS.c.study == self._study) & (_CLAIMS.c.life == self._life) & ~_CLAIMS.c.done
        with self._engine.begin() as link:
            link.execute(sa.update(_CLAIMS).where(own).values(beats=_CLAIMS.c.beats + 1))

    def start(self) -> None:
        """Beat from a thread until :meth:`stop`."""
        self._thread = threading.Thread(target=self._beat_on, name="dsv4lab-claims", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join()

    def _beat_on(self) -> None:
        while not self._ended.wait(self.grace_s / 4):
            with contextlib.suppress(SQLAlchemyError):  # it may be there at the next beat
                self.beat()

    def _watch(self, held: list[Held]) -> None:
        now = self._clock()
        for one in held:
            before = self._seen.get(one.key)
            if before is None or before[:2] != (one.life, one.beats):
                self._seen[one.key] = (one.life, one.beats, now)

    def _row(self, key: str) -> sa.ColumnElement[bool]:
        return (_CLAIMS.c.study == self._study) & (_CLAIMS.c.key == key)

    def _update(self, key: str, **values: object) -> bool:
        mine = self._row(key) & (_CLAIMS.c.life == self._life)
        with self._engine.begin() as link:
            return link.execute(sa.update(_CLAIMS).where(mine).values(**values)).rowcount == 1


def _held(row: Mapping[Any, Any]) -> Held:
    own = {name: row[name] for name in Held.__slots__}
    result = json.loads(own["result"] or "null")
    return Held(**{**own, "setting": Setting.from_json(json.loads(own["setting"])), "result": result})


def _create(engine: sa.Engine) -> None:
    """Make the tables; workers that start together may be in each other's way, so it is tried again."""
    for tried in range(TRIES):
        try:
            _METADATA.create_all(engine)
        except SQLAlchemyError:
            if tried == TRIES - 1:
                raise
        else:
            return
