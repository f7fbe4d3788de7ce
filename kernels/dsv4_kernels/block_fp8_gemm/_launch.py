"""Tiles of the fp8 product. Few tokens: narrow tiles and splits of K, so that all units read weights."""

from __future__ import annotations

from collections.abc import Mapping

from dsv4_kernels.launch import CARVEOUT, HALF, PDL, WHOLE, Config, LaunchTable, config, row

_WHOLE = {**PDL, CARVEOUT: WHOLE}
"""Of products through shared memory."""

_HALF = {**PDL, CARVEOUT: HALF}
"""Of large products of one token, and of those of :func:`_lanes` that it costs nothing. Their constants are no other
product's: a share is that of a compiled function."""


def _tile(warps: int, stages: int, tokens: int, rows: int, splits: int = 1) -> Config:
    group = 8 if splits == 1 and tokens > 16 else 1
    return config(warps, stages, _WHOLE, BLOCK_T=tokens, BLOCK_N=rows, GROUP_T=group, SPLITS=splits)


BLOCK_FP8_GEMM = LaunchTable(
    "block_fp8_gemm",
    {
        "nvidia": (
            row(_tile(4, 4, 16, 64), tokens=16, k=1024),
            row(config(4, 5, _WHOLE, BLOCK_T=16, BLOCK_N=32, GROUP_T=1, SPLITS=8), tokens=16, n=1024, k=8192),
            row(_tile(4, 6, 16, 32), tokens=16, k=3072),
            row(_tile(4, 4, 16, 32, 8), tokens=16, k=8192),
            row(_tile(4, 6, 16, 64, 8), tokens=16),
            row(_tile(4, 4, 32, 64), tokens=32, k=2048),
            row(_tile(4, 4, 16, 32, 8), tokens=32, n=1024),
            row(_tile(4, 4, 32, 64, 4), tokens=32),
            row(_tile(4, 4, 64, 64), tokens=128, n=4096, k=1024),
            row(_tile(4, 4, 64, 64, 8), tokens=128, n=1024),
            row(_tile(8, 4, 128, 64, 4), tokens=128, n=2048),
            row(_tile(8, 4, 128, 64), tokens=128, n=8192, k=3072),
            row(_tile(8, 4, 128, 64, 2), tokens=128, n=4096),
            row(_tile(8, 4, 128, 64), tokens=128, n=8192),
            row(_tile(8, 4, 128, 128)),
        ),
        "amd": (
            row(config(4, 2, BLOCK_T=16, BLOCK_N=32, GROUP_T=1, SPLITS=4), tokens=16, n=8192),
            row(config(4, 2, BLOCK_T=16, BLOCK_N=64, GROUP_T=1, SPLITS=1), tokens=16),
            row(config(4, 2, BLOCK_T=64, BLOCK_N=64, GROUP_T=4, SPLITS=1), tokens=128),
            row(config(8, 2, BLOCK_T=128, BLOCK_N=128, GROUP_T=8, SPLITS=1)),
        ),
    },
    tuple(
        _tile(*sizes)
        for sizes in (
            (4, 4, 16, 32, 8),
            (4, 6, 16, 64, 8),
            (4, 4, 16, 128, 8),
            (4, 6, 16, 32),
            (4, 4, 16, 128),
            (4, 4, 32, 64, 8),
            (4, 4, 32, 64, 4),
            (4, 4, 32, 128, 8),
            (4, 4, 32, 64),
            (4, 4, 64, 64, 8),
            (4, 4, 64, 64, 4),
            (4, 4, 64, 64, 2),
            (4, 4, 64, 128, 4),
            (4, 4, 64, 128),
            (8, 4, 128, 128, 4),
            (8, 4, 128, 64, 4),
            (8, 4, 128, 64, 2),
            (8, 4, 128, 128),
            (8, 4, 128, 64),
        )
    ),
)


def _lanes(warps: int, ahead: int, rows: int, across: int, options: Mapping[str, int] = _HALF) -> Config:
    """``rows`` of a program, ``across`` warps side by side in a row, ``ahead`` blocks of 128 columns of each warp."""
    return config(warps, ahead, options, BLOCK_N=rows, BLOCK_K=128 * across, KIND=4)


_APART = config(4, 1, PDL, BLOCK_N=0, BLOCK_K=0, KIND=2)

FEW_TOKENS = 16
"""Up to so many tokens ``FEW`` says whether a program reads whole rows and quantises the activations itself."""

FEW = LaunchTable(
    "block_fp8_few",
    {
        "nvidia": (
            row(config(2, 1, PDL, BLOCK_N=16, BLOCK_K=256, KIND=0), tokens=2, k=256, n=8192),
            row(config(4, 1, PDL, BLOCK_N=16, BLOCK_K=512, KIND=0), tokens=1, k=512, n=8192),
            row(config(8, 1, PDL, BLOCK_N=16, BLOCK_K=1024, KIND=0), tokens=1, k=1024, n=4096),
            row(config(8, 1, _HALF, BLOCK_N=16, BLOCK_K=1024, KIND=0), tokens=1, k=2048, n=4096),
            row(config(8, 1, PDL, BLOCK_N=4, BLOCK_K=4096, KIND=0), tokens=1, k=4096, n=512, quant=0),
            row(config(4, 1, PDL, BLOCK_N=4, BLOCK_K=4096, KIND=0), tokens=1, k=4096, n=512),
            row(config(4, 1, PDL, BLOCK_N=4, BLOCK_K=4096, KIND=0), tokens=1, k=4096, n=2048, quant=0),
            row(config(4, 1, PDL, BLOCK_N=4, BLOCK_K=2048, KIND=0), tokens=1, k=4096, n=2048),
            row(_lanes(4, 1, 32, 2), tokens=16, k=256),
            row(_lanes(4, 1, 16, 4), tokens=16, k=512),
            row(_lanes(4, 2, 32, 4), tokens=16, k=1536, n=8192),
            row(_lanes(4, 2, 16, 4, {**PDL, "maxnreg": 128}), tokens=8, k=1024),
            row(_lanes(4, 2, 16, 4, PDL), tokens=16, k=1024),
            row(_lanes(4, 3, 16, 4, PDL), tokens=16, k=1536),
            row(_lanes(4, 4, 16, 4), tokens=8, k=2048, quant=0),
            row(_lanes(8, 2, 16, 8), tokens=16, k=2048, n=4096, quant=0),
            row(_lanes(16, 1, 32, 8), tokens=8, k=2048),
            row(_APART, tokens=16, k=2048),
            row(_lanes(8, 3, 16, 8), tokens=8, k=3072, quant=0),
            row(_lanes(2, 8, 16, 2, PDL), tokens=16, k=3072, quant=0),
            row(_lanes(8, 4, 16, 8), tokens=16, k=4096, n=2048),
            row(config(4, 1, _HALF, BLOCK_N=8, BLOCK_K=1024, KIND=0), tokens=1, k=4096, n=8192),
            row(_lanes(8, 2, 16, 8), tokens=8, k=4096, quant=0),
            row(_lanes(4, 6, 16, 4), tokens=16, k=4096, quant=0),
            row(config(8, 1, PDL, BLOCK_N=4, BLOCK_K=4096, KIND=0), tokens=1, k=7168, n=1024),
            row(config(8, 1, PDL, BLOCK_N=4, BLOCK_K=4096, KIND=0), tokens=1, k=7168, n=2048, quant=0),
            row(config(8, 1, _HALF, BLOCK_N=8, BLOCK_K=2048, KIND=0), tokens=1, k=7168, n=2048),
            row(config(4, 1, PDL, BLOCK_N=4, BLOCK_K=1024, KIND=0), tokens=1, k=7168, n=8192),
            row(config(8, 1, _HALF, BLOCK_N=8, BLOCK_K=2048, KIND=0), tokens=1, k=8192, n=8192),
            row(config(4, 1, PDL, BLOCK_N=4, BLOCK_K=2048, KIND=0), tokens=1, n=8192),
            row(_lanes(8, 7, 16, 8), tokens=16, k=7168, n=1024),
            row(_lanes(8, 4, 16, 8), tokens=8, k=7168, n=4096),
            row(_lanes(8, 5, 16, 8), tokens=16, k=7168, n=4096),
            row(_lanes(2, 8, 16, 2, PDL), tokens=8, k=7168),
            row(_lanes(4, 6, 16, 4), tokens=8, k=8192),
            row(_lanes(4, 8, 16, 4), tokens=16, k=8192, n=4096, quant=0),
            row(_lanes(4, 8, 16, 4), tokens=8, k=16384),
            row(_APART),
        ),
        "amd": (
            row(config(4, 1, BLOCK_N=32, BLOCK_K=256, KIND=0), tokens=2, k=256, n=8192),
            row(config(4, 1, BLOCK_N=8, BLOCK_K=1024, KIND=0), tokens=2, k=3072, n=8192),
            row(config(4, 1, BLOCK_N=4, BLOCK_K=2048, KIND=0), tokens=2, n=8192),
            row(config(4, 1, BLOCK_N=32, BLOCK_K=256, KIND=1), k=256, n=8192),
            row(config(4, 1, BLOCK_N=16, BLOCK_K=512, KIND=1), k=512, n=8192),
            row(config(4, 1, BLOCK_N=0, BLOCK_K=0, KIND=2)),
        ),
    },
)
"""``KIND`` 0: products in vector registers; 1: matrix units, all blocks of 128 columns side by side; 4: NVIDIA's own
(``_nvidia.py``), ``BLOCK_K`` columns of a step, stages on their way; 2: none of these, but the quantisation and a
product of codes, here or of ``BLOCK_FP8_GEMM``. ``quant`` 0: activations come in fp8.

The loads of 0 and 4 land in the first cache. On an H200 half of an SM's memory as shared memory costs those of 4 up to
2 %, but where many programs have much on their way 5 to 40 % (those ask for nothing), and the whole of it 6 to 25 %."""

FEW_SWIGLU = LaunchTable(
    "block_fp8_few_swiglu",
    {
        "nvidia": (
            row(config(2, 1, PDL, BLOCK_N=16, BLOCK_K=256, KIND=0), tokens=2, k=256, n=8192),
            row(config(4, 1, PDL, BLOCK_N=16, BLOCK_K=512, KIND=0), tokens=1, k=512, n=8192),
            row(config(4, 1, _HALF, BLOCK_N=8, BLOCK_K=1024, KIND=0), tokens=1, k=2048, n=8192),
            row(_APART),
        ),
        "amd": (row(config(4, 1, BLOCK_N=0, BLOCK_K=0, KIND=2)),),
    },
    tuple(
        config(warps, 1, PDL, BLOCK_N=rows, BLOCK_K=columns, KIND=0)
        for warps, rows, columns in (
            (4, 4, 2048), (4, 16, 2048), (8, 8, 2048), (8, 16, 2048), (4, 4, 1024), (4, 8, 1024), (4, 8, 512),
            (4, 8, 256), (2, 8, 256), (8, 4, 4096), (8, 16, 4096),
        )
    ),
)  # fmt: skip
"""As ``FEW`` for products of what a SwiGLU makes: a program makes it anew, so one row of programs has to be short."""
