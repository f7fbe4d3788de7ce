"""What sweeps need to become one: their rounds one after the other, and a candidate of all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dsv4lab.errors import UsageError
from dsv4lab.tuning.gate import Divergence
from dsv4lab.tuning.reading import space_from_json
from dsv4lab.tuning.recommend import pick_candidate
from dsv4lab.tuning.store import ORIGIN
from dsv4lab.tuning.trial import CONFIRM, EXPLORE, Trial, TrialKey

Record = dict[str, Any]

_TRIAL, _DIVERGED = "trial", "diverged"


def check_sweep(folder: Path, records: Sequence[Record]) -> None:
    """Raise :class:`UsageError` for a sweep whose trials cannot be merged.

    Those are one whose outputs differ, and one that was merged and then gone on with: its new trials fill gaps in the
    rounds of the sessions that it was made of.
    """
    for record in records:
        if record["kind"] == _DIVERGED and not record["cell"]["control"]:
            raise UsageError(
                f"{folder}: its outputs differ, so none of its times compare: {Divergence.from_json(record)}"
            )
    trials = [record for record in records if record["kind"] == _TRIAL]
    if len({ORIGIN in record for record in trials}) > 1:
        raise UsageError(f"{folder}: it was merged and gone on with; merge the sessions that it was made of")


def home_rounds(settings: Mapping[str, Any], record: Record) -> dict[str, int]:
    """For the origin of a sweep's trial: its round in its own session, and how many that session has."""
    if record["kind"] != _TRIAL or "sweep" not in settings:
        return {}
    return {"round": record["round"], "rounds": settings["sweep"]["rounds"]}


def in_rounds(manifest: Mapping[str, Any], records: Sequence[Record]) -> tuple[dict[str, Any], list[Record]]:
    """Manifest and records of the merged sweep: every session has rounds of its own there, confirming ones at the end.

    A round is a process per queue count, and pairs stand inside one, so sessions stay apart. Raises
    :class:`UsageError` for more rounds than a sweep may have.
    """
    rounds: dict[str, int] = {}
    for record in records:
        if record["kind"] == _TRIAL:
            rounds.setdefault(record[ORIGIN]["session"], record[ORIGIN]["rounds"])
    sweep = manifest["settings"]["sweep"]
    total = sum(rounds.values()) or sweep["rounds"]
    first, begun = {}, 0
    for session, count in rounds.items():
        first[session], begun = begun, begun + count
    places = {session: total + at for at, session in enumerate(rounds)}
    moved = []
    for record in records:
        if record["kind"] == _TRIAL:
            session, number = record[ORIGIN]["session"], record[ORIGIN]["round"]
            record = {**record, "round": places[session] if record["phase"] == CONFIRM else first[session] + number}
        moved.append(record)
    settings = {**manifest["settings"], "sweep": {**sweep, "rounds": total}}
    space_from_json(settings["sweep"])
    return {**manifest, "settings": settings}, moved


def nominated(manifest: Mapping[str, Any], records: Sequence[Record]) -> list[Record]:
    """The record of the candidate, picked from the exploring trials of all sessions as each picks its own.

    None as long as a trial is missing. Confirming trials play no part in it, so those of the same candidate decide
    about it.
    """
    space = space_from_json(manifest["settings"]["sweep"])
    trials = [Trial.from_json(record) for record in records if record["kind"] == _TRIAL]
    visits = [visit for visit in space.visits() if not visit.control]
    wanted = {TrialKey(EXPLORE, visit.round, turn.repeat, turn.cell) for visit in visits for turn in visit.turns}
    if not wanted <= {trial.key for trial in trials}:
        return []
    found = pick_candidate(space, trials)
    if found is None:
        return []
    origin = {"session": "merged", "record": len(records)}
    last = max((record["at"] for record in records), default="")
    return [{"kind": "candidate", "at": last, "plan": found.plan, "hw_queues": found.hw_queues, ORIGIN: origin}]
