"""Optuna's study of a session: where it is kept, which trials it has, and what it proposes next."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import optuna
import sqlalchemy as sa
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.exceptions import ExperimentalWarning, UpdateFinishedTrialError
from optuna.samplers import BaseSampler, TPESampler
from optuna.storages import RDBStorage
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState, create_trial
from sqlalchemy.exc import NoSuchModuleError, SQLAlchemyError

from dsv4lab.errors import UnavailableError
from dsv4lab.tuning.knobs import KnobSpace, Setting
from dsv4lab.tuning.search.log import Decision
from dsv4lab.tuning.search.plan import PARETO, SearchPlan
from dsv4lab.tuning.store import StoreError

FILE = "study.db"
"""The study of a session that shares none, in its folder."""

TRIES = 5
DECISION = "dsv4lab"
"""User attribute of a trial: the decision, as plain data."""
ASKED = "dsv4lab"
"""User attribute of a study: what is searched."""
_STARTUP = 4
_ASKS = 8


class Study:
    """Trials of one study of Optuna: of a stratum, or of the whole space where loads are searched too.

    ``load`` is the stratum, None for the whole space. Trials are numbers here; every setting has one at most that is
    not failed, which the session's claims see to.
    """

    def __init__(self, storage: RDBStorage, name: str, plan: SearchPlan, load: Setting | None) -> None:
        self.load = load
        self._space, self._seed = plan.space, plan.seed
        self._pareto = plan.method == PARETO
        knobs = plan.space.tuned_names if load is not None else tuple(k.name for k in plan.space.knobs)
        self._choices = {name: CategoricalDistribution(plan.space.knob(name).values) for name in knobs}
        self._sampler = _Given()
        self._running: dict[int, optuna.Trial] = {}
        directions = [StudyDirection.MINIMIZE, *([StudyDirection.MAXIMIZE] if self._pareto else [])]
        self._study = optuna.create_study(
            storage=storage, study_name=name, directions=directions, load_if_exists=True, sampler=self._sampler
        )

    def asked(self, now: Mapping[str, Any]) -> Mapping[str, Any]:
        """What the study was made for: ``now``, if that is not on record yet."""
        if ASKED not in self._study.user_attrs:
            self._study.set_user_attr(ASKED, dict(now))
        found: Mapping[str, Any] = self._study.user_attrs[ASKED]
        return found

    def begin(self, setting: Setting, worker: str) -> int:
        """A running trial of ``setting``; its number."""
        self._sampler.params = self._params(setting)
        trial = self._study.ask(dict(self._choices))
        trial.set_user_attr("worker", worker)
        self._running[trial.number] = trial
        return trial.number

    def end(self, number: int, decision: Decision) -> None:
        """Finish a trial that :meth:`begin` gave; nothing happens if another worker has failed it meanwhile."""
        trial = self._running.pop(number)
        with contextlib.suppress(UpdateFinishedTrialError):
            trial.set_user_attr(DECISION, decision.to_json())
            if decision.ok:
                self._study.tell(trial, list(self._values(decision)), skip_if_finished=True)
            else:
                self._study.tell(trial, state=TrialState.FAIL, skip_if_finished=True)

    def drop(self, number: int) -> None:
        """Fail a running trial whose worker is gone."""
        self._study.tell(number, state=TrialState.FAIL, skip_if_finished=True)

    def put(self, decision: Decision, worker: str) -> None:
        """Add a finished trial from a session's record."""
        state = TrialState.COMPLETE if decision.ok else TrialState.FAIL
        trial = create_trial(
            state=state,
            params=self._params(decision.setting),
            distributions=dict(self._choices),
            values=list(self._values(decision)) if decision.ok else None,
            user_attrs={"worker": worker, DECISION: decision.to_json()},
        )
        self._study.add_trial(trial)

    def settle(self, number: int, decision: Decision) -> None:
        """Finish a trial of an earlier life, if that had no time to."""
        if decision.ok:
            self._study.tell(number, list(self._values(decision)), skip_if_finished=True)
        else:
            self.drop(number)

    def proposals(self) -> Iterator[Setting]:
        """What a tree of Parzen estimators proposes after the trials so far, each other than those before it.

        The proposals depend on the trials and the seed alone. They are made on a copy of the study, so that those which
        are not taken leave no trace.
        """
        trials = [t for t in self._study.get_trials(deepcopy=False) if t.params]
        yield from proposed(trials, self._choices, self._study.directions, self._seed, self._space, self.load)

    def _values(self, decision: Decision) -> Iterator[float]:
        """TPOT against the baseline; where loads are searched too, TPOT and throughput themselves."""
        assert decision.delta is not None
        if not self._pareto:
            yield decision.delta
            return
        assert decision.tpot_ms is not None
        assert decision.tokens_per_s is not None
        yield decision.tpot_ms
        yield decision.tokens_per_s

    def _params(self, setting: Setting) -> dict[str, Any]:
        return setting.only(tuple(self._choices)).to_json()


def proposed(
    trials: Sequence[FrozenTrial],
    choices: Mapping[str, BaseDistribution],
    directions: Sequence[StudyDirection],
    seed: int,
    space: KnobSpace,
    load: Setting | None,
) -> Iterator[Setting]:
    """See :meth:`Study.proposals`."""
    with _without_warnings():
        sampler = TPESampler(n_startup_trials=_STARTUP, multivariate=True, constant_liar=True, seed=seed + len(trials))
        copy = optuna.create_study(directions=list(directions), sampler=sampler)
        copy.add_trials(trials)
        seen: set[Setting] = set()
        for _ in range(_ASKS):
            trial = copy.ask(dict(choices))
            copy.tell(trial, state=TrialState.FAIL)
            values = trial.params if load is None else {**trial.params, **load.to_json()}
            setting = space.setting(values)
            if setting not in seen:
                seen.add(setting)
                yield setting


def open_storage(url: str) -> RDBStorage:
    """The database at ``url``, its tables made if they are not there.

    Raises :class:`UnavailableError` if the driver is missing, and :class:`StoreError` if the database does not answer.
    """
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    shown = sa.make_url(url).render_as_string(hide_password=True)
    for tried in range(TRIES):
        try:
            return RDBStorage(url)
        except (ImportError, NoSuchModuleError) as error:
            raise UnavailableError(f"--study {shown}: the database's driver is missing ({error})") from None
        except SQLAlchemyError as error:  # workers that start together make the tables in each other's way
            if tried == TRIES - 1:
                raise StoreError(f"--study {shown}: {str(error).splitlines()[0]}") from None
    raise AssertionError


def own_storage(folder: Path) -> RDBStorage:
    """A new database in ``folder``, in the place of an old one: it is made of the session's records anyway."""
    for name in (FILE, f"{FILE}-journal", f"{FILE}-wal", f"{FILE}-shm"):
        (folder / name).unlink(missing_ok=True)
    storage = open_storage(f"sqlite:///{folder / FILE}")
    sa.event.listen(storage.engine, "connect", _without_syncs)
    storage.engine.dispose()  # of the connection that was made before
    return storage


def _without_syncs(connection: Any, _record: object) -> None:
    """What is made anew after a crash need not be on disk before the next load begins."""
    connection.execute("PRAGMA synchronous = OFF")


class _Given(BaseSampler):
    """Gives the values that it was given."""

    def __init__(self) -> None:
        self.params: Mapping[str, Any] = {}

    def infer_relative_search_space(self, study: optuna.Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        return {}

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        return {}

    def sample_independent(
        self, study: optuna.Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        return self.params[param_name]


@contextlib.contextmanager
def _without_warnings() -> Iterator[None]:
    """Optuna calls some of what is used here experimental; that is for us to know."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)
        yield
