"""What a command is."""

from __future__ import annotations

import argparse
from abc import ABC, abstractmethod
from typing import ClassVar


class Command(ABC):
    """One ``dsv4lab`` command.

    ``help`` is one line; ``examples`` are complete command lines, shown by ``--help`` and parsed by a test. Every
    command has ``--json``: its standard output is then one JSON object and nothing else. ``run`` returns the exit
    code; errors that a user can act on are raised as :class:`dsv4lab.errors.LabError`.
    """

    name: ClassVar[str]
    help: ClassVar[str]
    examples: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def prepare(self, parser: argparse.ArgumentParser) -> None:
        """Add this command's arguments to ``parser``, which has the common options already.

        A parser of a subcommand needs ``add_common_options(parser, nested=True)``.
        """

    @abstractmethod
    def run(self, args: argparse.Namespace) -> int:
        """Carry the command out with parsed ``args``; the exit code."""


def add_common_options(parser: argparse.ArgumentParser, *, nested: bool = False) -> None:
    """Add ``--json`` and ``--debug``. On a ``nested`` parser they leave what the outer one read alone unless given."""
    default = argparse.SUPPRESS if nested else False
    parser.add_argument("--json", action="store_true", default=default, help="print one JSON object and nothing else")
    parser.add_argument("--debug", action="store_true", default=default, help="show the traceback of an error")
