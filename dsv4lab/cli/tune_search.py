"""``dsv4lab tune --search``: from options to a search session, and what it prints."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rich.text import Text

from dsv4lab.cli import model_args
from dsv4lab.cli.knob_args import env_knobs
from dsv4lab.cli.output import console, emit_json, note, progress, say, text_table
from dsv4lab.cli.safe import cut
from dsv4lab.cli.search_args import AUTO, CPU_QUEUES, NONE
from dsv4lab.cli.tune_server import is_server, server_arms, server_space
from dsv4lab.config.engine import QUEUE_POLICIES, OverlapSetting
from dsv4lab.errors import EngineError, UsageError
from dsv4lab.units import seconds_text

if TYPE_CHECKING:
    from dsv4lab.config.engine import EngineConfig
    from dsv4lab.tuning.arm_target import ArmTarget
    from dsv4lab.tuning.engine_arms import EngineArms
    from dsv4lab.tuning.knobs import Knob, KnobSpace, KnobValue
    from dsv4lab.tuning.search.forecast import Prior
    from dsv4lab.tuning.search.outcome import SearchResult
    from dsv4lab.tuning.search.plan import SearchPlan
    from dsv4lab.tuning.search.runner import Progress
    from dsv4lab.tuning.search.shared import Sharing

CONFIRM_PAIRS = 30
_LABEL = 34
_PRIOR_LAYERS = 8


def run_search_command(args: argparse.Namespace, folder: Path) -> int:
    """JSON: ``levels``, ``front``, ``decisions``, ``noise`` and more (docs)."""
    from dsv4lab.tuning.search.session import run_search

    plan, target, prior = _asked(args, folder)
    if args.device != "cpu":
        from dsv4lab.engine.devices import choose_device

        choose_device(args.device)  # a device that is not here is said before there is a folder
    engine = None if is_server(args) else _engine(target)
    try:
        with _shown(plan) as tell:
            result = run_search(
                plan,
                target,
                folder,
                prior=prior,
                alike=None if engine is None else engine.program_of,
                tell=tell,
                resume=args.resume,
                sharing=_sharing(args, plan, target),
                aside=lambda: 0.0 if engine is None else engine.compiling_s,
            )
    except (KeyboardInterrupt, EngineError):
        note(f"what was measured so far is kept: the same command with --out {folder} --resume goes on")
        raise
    if not args.json:
        _print(result)
    report = _report(folder)
    if args.json:
        emit_json({**result.to_json(), "report": None if report is None else str(report)})
    elif report is not None:
        console().print(Text(f"report: {report}"))
    return 0


def _engine(target: ArmTarget) -> EngineArms:
    from dsv4lab.tuning.engine_arms import EngineArms

    assert isinstance(target, EngineArms)
    return target


def _report(folder: Path) -> Path | None:
    """The page that it writes; None, with a note, on a machine without plotly: what was measured is whole there too."""
    from dsv4lab.tuning.read_view import read_view
    from dsv4lab.tuning.store import REPORT

    try:
        from dsv4lab.tuning.summary_page import write_summary
    except ModuleNotFoundError as error:
        if error.name != "plotly":
            raise
        note(f"there is no plotly here to draw {REPORT} with; elsewhere: dsv4lab report {folder} --html {REPORT}")
        return None
    return write_summary(read_view(folder), folder / REPORT)


def _asked(args: argparse.Namespace, folder: Path) -> tuple[SearchPlan, ArmTarget, Prior | None]:
    if is_server(args):
        plan = _plan(args, server_space(args), "grid")
        return plan, server_arms(args, folder), _device_prior(args, {})
    from dsv4lab.tuning.engine_arms import EngineArms

    plans = _plans(args)
    queues: tuple[int, ...] | None = args.hw_queues or (CPU_QUEUES if args.device == "cpu" else None)
    config = _config(args, None if queues is None else queues[0])
    _check_auto(plans, config)
    plan = _plan(args, _engine_space(args, plans, queues or (config.hw_queues,)), args.search)
    own = {name: setting for name, setting in plans.items() if not isinstance(setting, str)}
    alive = 2 if config.device == "cpu" else 1  # a GPU may not hold two
    arms = EngineArms(plan.space, config, plans=own, alive=alive)
    return plan, arms, _engine_prior(args, arms, config, plans)


def _plan(args: argparse.Namespace, space: KnobSpace, method: str) -> SearchPlan:
    from dsv4lab.tuning.search.plan import Effort, SearchPlan

    effort = Effort(
        alpha=args.alpha,
        least=args.least,
        explore_pairs=args.pairs,
        confirm_pairs=args.confirm or CONFIRM_PAIRS,
        warm_loads=args.warm_loads,
        burst=args.burst,
    )
    space = _with_baseline(space, args.baseline)
    exact = not args.allow_different_outputs
    return SearchPlan(space, args.search or method, effort, args.trials, args.time, args.seed, exact)


def _plans(args: argparse.Namespace) -> dict[str, OverlapSetting]:
    settings = [model_args.plan_setting(word.strip()) for word in args.plans.split(",") if word.strip()]
    return {model_args.plan_name(setting): setting for setting in settings if setting is not None}


def _check_auto(plans: dict[str, OverlapSetting], config: EngineConfig) -> None:
    from dsv4lab.overlap.plan import is_auto, resolve_plan

    if any(is_auto(resolve_plan(plan)) for plan in plans.values()) and (
        config.device == "cpu" or not config.times_plans
    ):
        raise UsageError(
            "--plans auto: it measures graphs on GPUs, with dp_size 1; here it takes names of presets, or plan files"
        )


def _engine_space(args: argparse.Namespace, plans: dict[str, OverlapSetting], hw_queues: tuple[int, ...]) -> KnobSpace:
    from dsv4lab.tuning import engine_arms as ours
    from dsv4lab.tuning.knobs import CONCURRENCY, LOAD, MAX_NEW_TOKENS, PROMPT_TOKENS, KnobSpace, Setting

    given: list[tuple[str, tuple[KnobValue, ...]]] = [(ours.PLAN, tuple(plans)), (ours.HW_QUEUES, hw_queues)]
    if args.side_streams is not None:
        given.append((ours.SIDE_STREAMS, args.side_streams))
    if args.queue_policy is not None:
        given.append((ours.QUEUE_POLICY, args.queue_policy))
    given += [_further_knob(text) for text in args.knob]
    loads = (
        (CONCURRENCY, args.concurrency),
        (PROMPT_TOKENS, args.prompt_tokens),
        (MAX_NEW_TOKENS, args.max_new_tokens),
    )
    knobs: list[Knob] = [ours.engine_knob(name, values) for name, values in given]
    knobs += [*env_knobs(args), *(ours.engine_knob(name, values) for name, values in loads)]
    first = {knob.name: knob.values[0] for knob in knobs if knob.scope != LOAD}
    if "off" in plans:
        first[ours.PLAN] = "off"
    return KnobSpace(tuple(knobs), Setting.from_json(first))


def _further_knob(text: str) -> tuple[str, tuple[KnobValue, ...]]:
    name, equals, values = text.partition("=")
    if not name or not equals:
        raise UsageError(f"--knob {text}: it takes NAME=VALUE,VALUE,...")
    words: dict[str, KnobValue] = {"true": True, "false": False, "none": None}
    return name, tuple(words.get(word.strip(), word.strip()) for word in values.split(","))


def _with_baseline(space: KnobSpace, words: list[str]) -> KnobSpace:
    """``space`` against another baseline."""
    from dsv4lab.tuning.knobs import KnobSpace

    baseline = space.baseline
    for word in words:
        name, equals, text = word.partition("=")
        if not equals:
            raise UsageError(f"--baseline {word}: it takes KNOB=VALUE")
        texts = {_word(value): value for value in space.knob(name).values}
        if text not in texts:
            raise UsageError(f"--baseline {word}: {name} takes one of {', '.join(texts)}")
        baseline = baseline.replace(name, texts[text])
    return KnobSpace(space.knobs, baseline)


def _word(value: KnobValue) -> str:
    return "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _config(args: argparse.Namespace, hw_queues: int | None) -> EngineConfig:
    """The engine for the largest of the loads; the knobs set the rest. None queues: as many as its device gets."""
    largest = argparse.Namespace(**vars(args))
    largest.prompt_tokens, largest.max_new_tokens = max(args.prompt_tokens), max(args.max_new_tokens)
    largest.side_streams, largest.queue_policy = None, QUEUE_POLICIES[0]
    return model_args.engine_config(largest, max(args.concurrency), plan="off", hw_queues=hw_queues)


def _engine_prior(
    args: argparse.Namespace, arms: ArmTarget, config: EngineConfig, plans: dict[str, OverlapSetting]
) -> Prior | None:
    if args.prior != AUTO:
        return _device_prior(args, plans)
    if config.device != "cpu" or config.world_size > 1 or config.intra_op_threads > 1:
        return None
    from dsv4lab.host import usable_cores
    from dsv4lab.predict.cpu_probe import probe_cpu
    from dsv4lab.tuning.priors import CpuPrior

    return CpuPrior(_engine(arms), probe_cpu, usable_cores())


def _device_prior(args: argparse.Namespace, plans: dict[str, OverlapSetting]) -> Prior | None:
    if args.prior in (AUTO, NONE):
        return None
    from dsv4lab.predict.setting import Setting
    from dsv4lab.tuning.priors import DevicePrior

    name, _, model = args.prior.partition(":")
    base = Setting(model=model or "pro", layers=_PRIOR_LAYERS).on_device(name)
    return DevicePrior(base, plans)


def _sharing(args: argparse.Namespace, plan: SearchPlan, target: ArmTarget) -> Sharing | None:
    if args.study is None:
        if args.study_name is not None:
            raise model_args.missing("--study-name", "--study URL")
        return None
    from dsv4lab.tuning.search.shared import Sharing, default_name

    name = args.study_name or default_name(plan, {"name": target.name, **target.facts})
    return Sharing(args.study, name, args.grace)


@contextmanager
def _shown(plan: SearchPlan) -> Iterator[Callable[[Progress], None]]:
    """A bar over the settings, with the time that is left."""
    done = 0
    with progress(plan.budget + len(plan.space.strata()), "starting") as advance:

        def tell(now: Progress) -> None:
            nonlocal done
            advance(max(0, now.done - done), note=f"{cut(now.text, _LABEL):<{_LABEL}}{left_text(now.left_s)}")
            done = max(done, now.done)

        yield tell


def left_text(seconds: float | None) -> str:
    """Always of one width, so that the bar stands still."""
    return " " * 12 if seconds is None else f"{seconds_text(seconds):>7} left"


def _print(result: SearchResult) -> None:
    from dsv4lab.tuning.search import text
    from dsv4lab.tuning.search.plan import PARETO

    space = result.plan.space
    for level in result.levels:
        rows = text.best_rows(result, level.load)
        where = f" under {space.short(level.load)}" if len(result.levels) > 1 else ""
        if rows:
            text_table(text.BEST_COLUMNS, rows, title=f"Explored{where}: the best by their first pairs")
    confirmed = [row for row, level in zip(text.level_rows(result), result.levels, strict=True) if level.confirmation]
    if confirmed:
        text_table(text.LEVEL_COLUMNS, confirmed, title="Confirmed by fresh pairs")
    if result.plan.method == PARETO:
        title = "TPOT and throughput: settings that none beats in both"
        text_table(text.FRONT_COLUMNS, text.front_rows(result), title=title)
    say(" ".join(part for part in (text.effort_text(result), text.forecast_text(result)) if part))
    for line in text.failure_lines(result):
        say(f"  {line}", "lab.warn")
    if result.noise is not None:
        say(" ".join(result.noise.lines(result.plan.effort.alpha)))
    for level in result.levels:
        say(text.headline(space, level), "lab.title" if level.use != level.baseline else "")
