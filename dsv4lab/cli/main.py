"""The ``dsv4lab`` command: finds a command, parses its arguments, runs it, turns errors into one line."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import textwrap
import traceback
from collections.abc import Sequence
from typing import NoReturn

from dsv4lab._version import __version__
from dsv4lab.cli.base import Command, add_common_options
from dsv4lab.env import read_launch
from dsv4lab.errors import LabError, UsageError

COMMANDS = {
    "bench": "dsv4lab.cli.bench:BenchCommand",
    "bundle": "dsv4lab.cli.bundle:BundleCommand",
    "calibrate": "dsv4lab.cli.calibrate:CalibrateCommand",
    "checkpoint": "dsv4lab.cli.checkpoint:CheckpointCommand",
    "doctor": "dsv4lab.cli.doctor:DoctorCommand",
    "eval": "dsv4lab.cli.eval:EvalCommand",
    "kernels": "dsv4lab.cli.kernels:KernelsCommand",
    "lab": "dsv4lab.cli.lab:LabCommand",
    "logits": "dsv4lab.cli.logits:LogitsCommand",
    "memory": "dsv4lab.cli.memory:MemoryCommand",
    "probe": "dsv4lab.cli.probe:ProbeCommand",
    "report": "dsv4lab.cli.report:ReportCommand",
    "run": "dsv4lab.cli.run:RunCommand",
    "selfcheck": "dsv4lab.cli.selfcheck:SelfcheckCommand",
    "serve": "dsv4lab.cli.serve:ServeCommand",
    "simulate": "dsv4lab.cli.simulate:SimulateCommand",
    "trace": "dsv4lab.cli.trace:TraceCommand",
    "tune": "dsv4lab.cli.tune:TuneCommand",
    "whatif": "dsv4lab.cli.whatif:WhatifCommand",
}
"""Command name to ``module:class``; a command's module is imported when it is asked for."""

INTERRUPTED = 130
BROKEN_PIPE = 141


class Parser(argparse.ArgumentParser):
    """An argument parser that raises :class:`UsageError` instead of printing usage and exiting."""

    def error(self, message: str) -> NoReturn:
        """Raise ``message`` with the command that it belongs to."""
        raise UsageError(f"{message} (see {self.prog} --help)")


class TopParser(Parser):
    """The parser of ``dsv4lab`` itself. Its help lists the commands, and only then imports them all."""

    def format_help(self) -> str:
        """The help text with one line per command."""
        width = max(map(len, COMMANDS)) + 2
        rows = [f"  {name:<{width}}{load_command(name).help}" for name in COMMANDS]
        self.epilog = (
            "commands:\n" + "\n".join(rows) + "\n\ndsv4lab COMMAND --help shows a command's arguments and examples"
        )
        return super().format_help()


def load_command(name: str) -> Command:
    """The command called ``name``."""
    module, _, attribute = COMMANDS[name].partition(":")
    kind: type[Command] = getattr(importlib.import_module(module), attribute)
    return kind()


def command_parser(command: Command) -> Parser:
    """The complete parser of ``command``, examples in its epilog."""
    parser = Parser(
        prog=f"dsv4lab {command.name}",
        description=command.help,
        epilog=_examples(command.examples),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add_common_options(parser)
    command.prepare(parser)
    return parser


def top_parser() -> Parser:
    """The parser of the words up to the command's name."""
    parser = TopParser(
        prog="dsv4lab",
        usage="dsv4lab [--version] [--debug] COMMAND ...",
        description="An interactive lab for the unified-KV DeepSeek-V4 runtime.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"dsv4lab {__version__}")
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    parser.add_argument("command", nargs="?", metavar="COMMAND", help=argparse.SUPPRESS)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``dsv4lab`` with ``argv`` (default: the process's); the exit code.

    A :class:`LabError` becomes one line on standard error and its own exit code (2 for bad input, 1 for a failure of
    the engine); an interrupt gives 130.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in words
    try:
        return _run(words)
    except SystemExit as stop:  # argparse after --help and --version
        return int(stop.code or 0)
    except LabError as error:
        return _report(error, error.exit_code, debug)
    except KeyboardInterrupt:
        print("dsv4lab: interrupted", file=sys.stderr)  # noqa: T201 - the one place where errors are printed
        return INTERRUPTED
    except BrokenPipeError:
        # The reader went away (`| head`): keep the interpreter's own flush at exit from failing on it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except Exception as error:  # noqa: BLE001 - a defect of ours must not end in a traceback either
        return _report(error, 1, debug)


def _run(words: list[str]) -> int:
    """The command; of several ranks that torchrun has started the first runs it, and the others serve its engines."""
    launch = read_launch()
    if launch is None:
        return _dispatch(words)
    from dsv4lab.engine.launched import finish, serve

    if launch.rank:
        return serve(launch)
    try:
        return _dispatch(words)
    finally:
        finish(launch)


def _dispatch(words: list[str]) -> int:
    at = next((i for i, word in enumerate(words) if not word.startswith("-")), len(words))
    parser = top_parser()
    options = parser.parse_args(words[: at + 1])
    if options.command is None:
        parser.print_help()
        return 0
    if options.command not in COMMANDS:
        raise UsageError(f"unknown command {options.command!r}; commands are {', '.join(COMMANDS)}")
    command = load_command(options.command)
    return command.run(command_parser(command).parse_args(words[at + 1 :]))


def _report(error: Exception, exit_code: int, debug: bool) -> int:
    if debug:
        traceback.print_exception(error, file=sys.stderr)
    text = " ".join(str(error).split())
    if not isinstance(error, LabError | OSError):  # a full disk is no defect of ours
        text = f"internal error: {type(error).__name__}: {text} (run again with --debug for the traceback)"
    print(f"dsv4lab: error: {text}", file=sys.stderr)  # noqa: T201 - the one place where errors are printed
    return exit_code


def _examples(lines: Sequence[str]) -> str | None:
    return "examples:\n" + textwrap.indent("\n".join(lines), "  ") if lines else None
