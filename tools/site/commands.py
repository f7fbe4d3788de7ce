"""The page of the command line: every command's help, as its own parser prints it."""

from __future__ import annotations

import argparse
import html
import re

from dsv4lab.cli.main import COMMANDS, command_parser, load_command

INTRO = """# Command line

Every command has `--help` with examples, and `--json`, which prints one JSON object and nothing else on standard
output; the README lists its keys. Bad input is one line on standard error that names the thing and what it takes, with
exit code 2; a failure of the engine exits with 1, an interrupt with 130. This page is made from the commands' parsers.
"""


def page() -> str:
    """The page as Markdown."""
    return "\n".join([INTRO, *map(_section, COMMANDS)])


def _section(name: str) -> str:
    command = load_command(name)
    parser = command_parser(command)
    examples = "\n".join(command.examples)
    rows = "\n".join(_row(action) for action in parser._actions if action.help not in (None, argparse.SUPPRESS))
    return (
        f"## `{name}`\n\n{command.help[0].upper()}{command.help[1:]}.\n\n```sh\n{examples}\n```\n\n"
        f"| argument | what it is |\n| --- | --- |\n{rows}\n"
    )


def _row(action: argparse.Action) -> str:
    shown = action.metavar if isinstance(action.metavar, str) else None
    value = "" if action.nargs == 0 else shown or ("" if action.choices else action.dest.upper())
    if action.choices:
        value = shown or "|".join(map(str, action.choices))
    names = ", ".join(action.option_strings)
    words = f"{names} {value}".strip() if names else shown or action.dest
    code = html.escape(words).replace("|", "&#124;")
    return f"| <code>{code}</code> | {_cell(_help(action))} |"


def _help(action: argparse.Action) -> str:
    text = str(action.help).replace("%%", "%")
    return re.sub(r"%\((\w+)\)s", lambda found: str(getattr(action, found[1], "")), text)


def _cell(text: str) -> str:
    return html.escape(text, quote=False).replace("|", "&#124;")
