"""``dsv4lab bench overlap`` from a checkout that is not installed.

It needs torch, Triton, numpy, numba, scipy, safetensors and rich only.

python kernels/bench/overlap.py --out DIR [--shape flash-tp8] [--layers 12] [--minutes 8]
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[at]) for at in (1, 2)]

from dsv4lab.cli.main import main  # noqa: E402 - only now can it be found

if __name__ == "__main__":
    sys.exit(main(["bench", "overlap", *sys.argv[1:]]))
