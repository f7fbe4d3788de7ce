"""Cases and cost of the hyper-connection kernels."""

from __future__ import annotations

import torch

from dsv4_kernels.mhc_pre_post._launch import (
    COLLAPSE,
    COLLAPSE_FEW,
    MANY,
    MIX,
    MIX_FEW,
    ONCE,
    ONCE_SPREAD,
    SPREAD,
)
from dsv4_kernels.mhc_pre_post.reference import (
    mhc_head_reference,
    mhc_post_pre_reference,
    mhc_post_reference,
    mhc_pre_reference,
)
from dsv4_kernels.registry import Arguments, Case, Cost, KernelSpec, Tolerance
from dsv4_kernels.testing.inputs import Inputs

FLASH, PRO = 4096, 7168
ARITHMETIC = {"rms_eps": 1e-6, "hc_eps": 1e-6, "iters": 20}


def _weights(inputs: Inputs, d: int, mixes: int, scales: int) -> Arguments:
    return {
        "fn": inputs.normal(mixes, 4 * d, dtype=torch.float32, scale=(4 * d) ** -0.5),
        "base": inputs.normal(mixes, dtype=torch.float32),
        "scale": inputs.uniform(scales, low=0.5, high=1.5),
    }


def _mixes(inputs: Inputs, n: int) -> Arguments:
    return {"post": inputs.uniform(n, 4, high=2.0), "comb": inputs.uniform(n, 4, 4, high=0.5)}


def _pre(inputs: Inputs, n: int, d: int, dtype: torch.dtype = torch.bfloat16) -> Arguments:
    outputs = {
        "out": inputs.empty(n, d, dtype=dtype), "post": inputs.empty(n, 4, dtype=torch.float32),
        "comb": inputs.empty(n, 4, 4, dtype=torch.float32),
    }  # fmt: skip
    return {
        "x": inputs.normal(n, 4, d, dtype=dtype, scale=2.0),
        **_weights(inputs, d, 24, 3),
        **ARITHMETIC,
        **outputs,
    }


def _post(inputs: Inputs, n: int, d: int, dtype: torch.dtype = torch.bfloat16) -> Arguments:
    return {"y": inputs.normal(n, d, dtype=dtype), **_mixes(inputs, n), "x": inputs.normal(n, 4, d, dtype=dtype)}


def _head(inputs: Inputs, n: int, d: int, dtype: torch.dtype = torch.bfloat16) -> Arguments:
    return {
        "x": inputs.normal(n, 4, d, dtype=dtype, scale=2.0), **_weights(inputs, d, 4, 1), "rms_eps": 1e-6,
        "hc_eps": 1e-6, "out": inputs.empty(n, d, dtype=dtype),
    }  # fmt: skip


def _post_pre(inputs: Inputs, n: int, d: int, dtype: torch.dtype = torch.bfloat16) -> Arguments:
    outputs = {
        "out": inputs.empty(n, d, dtype=dtype), "new_post": inputs.empty(n, 4, dtype=torch.float32),
        "new_comb": inputs.empty(n, 4, 4, dtype=torch.float32),
    }  # fmt: skip
    return {**_post(inputs, n, d, dtype), **_weights(inputs, d, 24, 3), **ARITHMETIC, **outputs}


def _normed(inputs: Inputs, arguments: Arguments, dtype: torch.dtype = torch.bfloat16) -> Arguments:
    n, d = arguments["out"].shape
    return {
        **arguments, "norm": inputs.normal(d, dtype=dtype) + 1.0, "normed": inputs.empty(n, d, dtype=dtype),
    }  # fmt: skip


def _quantised(inputs: Inputs, arguments: Arguments) -> Arguments:
    n, d = arguments["out"].shape
    return {
        **_normed(inputs, arguments), "codes": inputs.empty(n, d, dtype=torch.float8_e4m3fn),
        "scales": inputs.empty(n, d // 128, dtype=torch.uint8),
    }  # fmt: skip


def _cost(arguments: Arguments) -> Cost:
    tensors = [t for t in arguments.values() if isinstance(t, torch.Tensor)]
    moved = sum(t.numel() * t.element_size() for t in tensors)
    x = arguments["x"]
    if "y" in arguments:  # the streams are written as well as read
        moved += x.numel() * x.element_size()
    mixes = arguments["fn"].shape[0] if "fn" in arguments else 0
    return Cost(moved, 2 * x.numel() * (mixes + 1 + (4 if "y" in arguments else 0)))


# The matrix units truncate their float32 sums: over 28,672 products that is 1e-5 of a logit, and the mixes follow.
_TOLERANCE = Tolerance(floor=2.0**-15)

SPECS = (
    KernelSpec(
        "mhc_pre",
        mhc_pre_reference,
        "dsv4_kernels.mhc_pre_post.triton_op:mhc_pre",
        (
            Case("flash-1", lambda i: _pre(i, 1, FLASH), small=False, compiled=True, bench=True),
            Case("small-5", lambda i: _pre(i, 5, 448)),
            Case("small-20", lambda i: _pre(i, 20, 448)),
            Case("float32", lambda i: _pre(i, 2, 256, torch.float32)),
            Case("empty", lambda i: _pre(i, 0, 256)),
            Case("pro-300", lambda i: _pre(i, 300, PRO), small=False, compiled=True),
            Case("small-530", lambda i: _pre(i, 530, 320)),
            Case("flash-600", lambda i: _pre(i, 600, FLASH), small=False, compiled=True),
            Case("pro-700", lambda i: _pre(i, 700, PRO), small=False, compiled=True),
            Case("flash-4096", lambda i: _pre(i, 4096, FLASH), small=False, bench=True),
            Case("pro-4096", lambda i: _pre(i, 4096, PRO), small=False, bench=True),
        ),
        _cost,
        (ONCE, MANY, MIX, COLLAPSE, MIX_FEW, COLLAPSE_FEW),
        outputs=("out", "post", "comb"),
        tolerance=_TOLERANCE,
    ),
    KernelSpec(
        "mhc_post",
        mhc_post_reference,
        "dsv4_kernels.mhc_pre_post.triton_op:mhc_post",
        (
            Case("flash-1", lambda i: _post(i, 1, FLASH), small=False, compiled=True, bench=True),
            Case("small-5", lambda i: _post(i, 5, 448)),
            Case("float32", lambda i: _post(i, 2, 256, torch.float32)),
            Case("empty", lambda i: _post(i, 0, 256)),
            Case("flash-4096", lambda i: _post(i, 4096, FLASH), small=False, bench=True),
        ),
        _cost,
        (SPREAD,),
        updates=("x",),
        tolerance=_TOLERANCE,
    ),
    KernelSpec(
        "mhc_head",
        mhc_head_reference,
        "dsv4_kernels.mhc_pre_post.triton_op:mhc_head",
        (
            Case("flash-1", lambda i: _head(i, 1, FLASH), small=False, compiled=True, bench=True),
            Case("small-5", lambda i: _head(i, 5, 448)),
            Case("empty", lambda i: _head(i, 0, 256)),
        ),
        _cost,
        (MIX, COLLAPSE, MIX_FEW, COLLAPSE_FEW),
        outputs=("out",),
        tolerance=_TOLERANCE,
    ),
    KernelSpec(
        "mhc_post_pre",
        mhc_post_pre_reference,
        "dsv4_kernels.mhc_pre_post.triton_op:mhc_post_pre",
        (
            Case("flash-1", lambda i: _post_pre(i, 1, FLASH), small=False, compiled=True, bench=True),
            Case("small-5", lambda i: _post_pre(i, 5, 448)),
            Case("small-20", lambda i: _post_pre(i, 20, 448)),
            Case("empty", lambda i: _post_pre(i, 0, 256)),
            Case("flash-64", lambda i: _post_pre(i, 64, FLASH), small=False, compiled=True, bench=True),
            Case("small-530", lambda i: _post_pre(i, 530, 320)),
            Case("flash-600", lambda i: _post_pre(i, 600, FLASH), small=False, compiled=True),
            Case("pro-700", lambda i: _post_pre(i, 700, PRO), small=False, compiled=True),
            Case("flash-4096", lambda i: _post_pre(i, 4096, FLASH), small=False, bench=True),
            Case("pro-4096", lambda i: _post_pre(i, 4096, PRO), small=False, bench=True),
        ),
        _cost,
        (ONCE_SPREAD, MANY, MIX, COLLAPSE, MIX_FEW, COLLAPSE_FEW),
        outputs=("out", "new_post", "new_comb"),
        updates=("x",),
        tolerance=_TOLERANCE,
    ),
    KernelSpec(
        "mhc_pre_norm",
        mhc_pre_reference,
        "dsv4_kernels.mhc_pre_post.triton_op:mhc_pre",
        (
            Case("small-3", lambda i: _normed(i, _pre(i, 3, 448))),
            Case("small-20", lambda i: _normed(i, _pre(i, 20, 256))),
            Case("flash-1", lambda i: _normed(i, _pre(i, 1, FLASH)), small=False, bench=True),
            Case("pro-16", lambda i: _normed(i, _pre(i, 16, PRO)), small=False, compiled=True, bench=True),
        ),
        _cost,
        (MIX_FEW, COLLAPSE_FEW),
        outputs=("out", "post", "comb", "normed"),
        tolerance=_TOLERANCE,
    ),
    KernelSpec(
        "mhc_post_pre_norm",
        mhc_post_pre_reference,
        "dsv4_kernels.mhc_pre_post.triton_op:mhc_post_pre",
        (
            Case("small-2", lambda i: _normed(i, _post_pre(i, 2, 448))),
            Case("flash-1", lambda i: _normed(i, _post_pre(i, 1, FLASH)), small=False, compiled=True, bench=True),
        ),
        _cost,
        (MIX_FEW, COLLAPSE_FEW),
        outputs=("out", "new_post", "new_comb", "normed"),
        updates=("x",),
        tolerance=_TOLERANCE,
    ),
    KernelSpec(
        "mhc_pre_norm_quant",
        mhc_pre_reference,
        "dsv4_kernels.mhc_pre_post.triton_op:mhc_pre",
        (
            Case("small-3", lambda i: _quantised(i, _pre(i, 3, 384))),
            Case("small-20", lambda i: _quantised(i, _pre(i, 20, 256))),
            Case("flash-1", lambda i: _quantised(i, _pre(i, 1, FLASH)), small=False, compiled=True, bench=True),
            Case("pro-16", lambda i: _quantised(i, _pre(i, 16, PRO)), small=False, compiled=True, bench=True),
        ),
        _cost,
        (MIX_FEW, COLLAPSE_FEW),
        outputs=("out", "post", "comb", "normed", "codes", "scales"),
        tolerance=_TOLERANCE,
    ),
    KernelSpec(
        "mhc_post_pre_norm_quant",
        mhc_post_pre_reference,
        "dsv4_kernels.mhc_pre_post.triton_op:mhc_post_pre",
        (
            Case("small-3", lambda i: _quantised(i, _post_pre(i, 3, 384))),
            Case("small-20", lambda i: _quantised(i, _post_pre(i, 20, 256))),
            Case("flash-4", lambda i: _quantised(i, _post_pre(i, 4, FLASH)), small=False, compiled=True),
        ),
        _cost,
        (MIX_FEW, COLLAPSE_FEW),
        outputs=("out", "new_post", "new_comb", "normed", "codes", "scales"),
        updates=("x",),
        tolerance=_TOLERANCE,
    ),
)
