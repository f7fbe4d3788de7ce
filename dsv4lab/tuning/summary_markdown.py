"""A session as Markdown: the table that pull requests publish, its evidence, and what to paste."""

from __future__ import annotations

from dsv4lab.tuning import summary
from dsv4lab.tuning.launch import launch_lines
from dsv4lab.tuning.table_text import markdown_table, plain
from dsv4lab.tuning.view import SessionView


def markdown(view: SessionView, *, settings: bool = True) -> str:
    """The session; without the long table of all settings if ``settings`` is false."""
    parts = [f"## {plain(view.title)}", f"**{plain(summary.headline(view))}**"]
    parts += [
        text for text in (summary.scope_text(view), summary.gate_sentence(view), summary.noise_sentence(view)) if text
    ]
    for title, loads in summary.groups(view):
        uses = [use for use in view.uses if use.load in loads]
        if uses:
            about = summary.about_text(uses)
            parts += [
                f"### {plain(title or 'Before and after')}",
                plain(about),
                markdown_table(summary.published_table(view, uses)),
            ]
    if view.profiles:
        parts += ["### Profiles", markdown_table(summary.profile_table(view.profiles))]
    for line in launch_lines(view):
        parts += [f"{line.framework}, {plain(line.what)}:", f"```sh\n{line.line}\n```"]
    if settings:
        for title, loads in summary.groups(view):
            parts += [f"### All settings: {plain(title)}" if title else "### All settings"]
            parts += [markdown_table(summary.settings_table(view, loads), left=2)]
    if failed := summary.failures(view):
        parts += ["### Failed", "\n".join(f"- {plain(text.splitlines()[0])}" for text in failed)]
    return "\n\n".join(parts) + "\n"
