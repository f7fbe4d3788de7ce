"""A record as a page of Markdown for ``docs/measurements``. Pure."""

from __future__ import annotations

from dsv4lab.tuning.overlap import tables
from dsv4lab.tuning.overlap.reading import read
from dsv4lab.tuning.overlap.record import OverlapRecord
from dsv4lab.tuning.table_text import markdown_table


def markdown(record: OverlapRecord) -> str:
    """Result, controls, hidden time, profiles, every plan, and what they come from."""
    views = read(record)
    parts = [f"# Overlap: {record.settings.shape}", f"{tables.title(record)}.", tables.gate_sentence(record)]
    if views:
        parts += [tables.about(record), markdown_table(tables.result_table(views))]
        parts += ["## Controls and auto", markdown_table(tables.control_table(views))]
        parts += ["## Hidden side time, and the byte floor", markdown_table(tables.hidden_table(views), left=2)]
    notes = tables.profile_notes(record.profiles)
    if record.profiles:
        parts += ["## Profile of a step", markdown_table(tables.profile_table(record.profiles), left=3)]
        parts += [f"{note}." for note in notes]
    if views:
        parts += ["## Every plan", markdown_table(tables.plan_table(views), left=2)]
    if record.left_out:
        parts += ["## Left out", "\n".join(f"- {text}" for text in record.left_out)]
    facts: list[tuple[str, ...]] = [(name, str(value)) for name, value in record.machine.items() if value is not None]
    if record.bytes_per_us is not None:
        facts.append(("copy rate", f"{record.bytes_per_us / 1e6:.2f} TB/s, read and written"))
    return "\n\n".join([*parts, "## Machine", markdown_table((("what", "value"), facts))]) + "\n"
