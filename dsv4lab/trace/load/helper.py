"""The second process of :mod:`dsv4lab.trace.load.share`: decodes every other piece of a file."""

from __future__ import annotations

import sys
from pathlib import Path

from dsv4lab.errors import TraceError
from dsv4lab.trace.load.kineto_rows import KinetoRows
from dsv4lab.trace.load.own import OWN_KEY
from dsv4lab.trace.load.pieces import EventReader
from dsv4lab.trace.load.report import LoadReport
from dsv4lab.trace.load.share import PROCESSES, store
from dsv4lab.trace.load.source import Source, read_ahead


def main(path: Path, out: Path) -> int:
    """Decode the pieces that are this process's; 0 if the file could be shared."""
    report = LoadReport(file=path.name)
    reader = EventReader(read_ahead(iter(Source(path))), report, path, share=1, of=PROCESSES)
    rows = KinetoRows(report)
    try:
        for events, codes in reader:
            rows.own = OWN_KEY in reader.header
            rows.add(events, codes, reader.piece)
    except TraceError:
        return 1
    if reader.ended_early:
        return 1
    report.repairs.pop("damaged header", None)
    store(out, rows, report)
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
