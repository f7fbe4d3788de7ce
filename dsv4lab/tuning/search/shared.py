"""What the workers of a session share: studies of Optuna and claims, in the session's folder or in a database."""

from __future__ import annotations

import contextlib
import hashlib
import json
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from optuna.exceptions import StorageInternalError
from sqlalchemy import make_url
from sqlalchemy.exc import ArgumentError, SQLAlchemyError

from dsv4lab.errors import UsageError
from dsv4lab.tuning.search.claims import Claims
from dsv4lab.tuning.search.plan import PARETO, SearchPlan
from dsv4lab.tuning.search.study import Study, open_storage, own_storage
from dsv4lab.tuning.store import StoreError, first_difference

GRACE_S = 60.0
"""How long a worker may stand still before another takes over what it measures."""

OWN_NAME = "search"


@dataclass(frozen=True, slots=True)
class Sharing:
    """Where several workers meet: the ``url`` of a database, and the study's ``name`` there.

    Raises :class:`UsageError` for a malformed URL.
    """

    url: str
    name: str
    grace_s: float = GRACE_S

    def __post_init__(self) -> None:
        try:
            make_url(self.url)
        except ArgumentError:
            raise UsageError("--study: it takes a database URL such as postgresql+psycopg://user@host/name") from None

    def to_json(self) -> dict[str, Any]:
        """Plain data, without the password."""
        return {"url": make_url(self.url).render_as_string(hide_password=True), "name": self.name}


@dataclass(frozen=True, slots=True)
class Shared:
    """The studies, one per load or one for all, and the claims."""

    studies: tuple[Study, ...]
    claims: Claims


def default_name(plan: SearchPlan, target: Mapping[str, Any]) -> str:
    """A name for the study, the same for workers that search the same."""
    text = json.dumps(_asked(plan, target), sort_keys=True)
    return f"dsv4lab-{hashlib.sha256(text.encode()).hexdigest()[:10]}"


@contextlib.contextmanager
def shared_by(
    plan: SearchPlan, target: Mapping[str, Any], folder: Path, worker: str, sharing: Sharing | None
) -> Iterator[Shared]:
    """Open what the session's workers share; without ``sharing`` that is a study in ``folder``, made anew.

    Raises :class:`UsageError` if the study is of another search, and :class:`StoreError` when the database fails.
    """
    storage = own_storage(folder) if sharing is None else open_storage(sharing.url)
    name = OWN_NAME if sharing is None else sharing.name
    grace = GRACE_S if sharing is None else sharing.grace_s
    claims: Claims | None = None
    try:
        studies = tuple(Study(storage, own, plan, load) for own, load in _study_names(plan, name))
        _compare(studies[0], plan, target, name)
        life = uuid.uuid4().hex
        claims = Claims(storage.engine, name, worker, life, budget=plan.budget, grace_s=grace)
        if sharing is not None:
            claims.start()
        yield Shared(studies, claims)
    except (SQLAlchemyError, StorageInternalError) as error:
        where = folder if sharing is None else sharing.to_json()["url"]
        cause = error.__cause__ if isinstance(error, StorageInternalError) and error.__cause__ else error
        raise StoreError(f"the study in {where} cannot be used: {str(cause).splitlines()[0]}") from error
    finally:
        if claims is not None:
            claims.stop()
        storage.remove_session()
        storage.engine.dispose()


def _study_names(plan: SearchPlan, name: str) -> list[tuple[str, Any]]:
    """Names of the studies with their loads: one study for all loads where loads are searched too, else one each."""
    if plan.method == PARETO:
        return [(name, None)]
    strata = plan.space.strata()
    return [(name if len(strata) == 1 else f"{name}: {load.label}", load) for load in strata]


def _compare(study: Study, plan: SearchPlan, target: Mapping[str, Any], name: str) -> None:
    """Refuse a study that was made for another search."""
    asked = _asked(plan, target)
    before = study.asked(asked)
    different = first_difference(before, asked)
    if different:
        raise UsageError(f"--study-name {name}: that study is of another search, {different}; give another name")


def _asked(plan: SearchPlan, target: Mapping[str, Any]) -> dict[str, Any]:
    """What has to be equal for trials to belong to one study. How long each worker stays is its own affair."""
    search = {key: value for key, value in plan.to_json().items() if key != "seconds"}
    asked = {"search": search, "space": plan.space.to_json(), "target": dict(target)}
    plain: dict[str, Any] = json.loads(json.dumps(asked))  # as the database gives it back
    return plain
