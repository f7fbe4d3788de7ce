"""Wrapper of the sum's kernel; arguments as in ``reference.py``."""

from __future__ import annotations

import torch
import triton

from dsv4_kernels.add._kernel import _add_kernel
from dsv4_kernels.add._launch import ADD
from dsv4_kernels.checks import require, require_shape, require_unit_stride
from dsv4_kernels.launch import launch, pdl_of
from dsv4_kernels.target import target_of


def add(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> None:
    """See :func:`dsv4_kernels.add.add_reference`."""
    require(a.dim() == 2, f"a is {list(a.shape)}, expected [T, D]")
    tokens, d = a.shape
    for name, tensor in (("b", b), ("out", out)):
        require_shape(name, tensor, tokens, d)
    for name, tensor in (("a", a), ("b", b), ("out", out)):
        require_unit_stride(name, tensor)
    chosen = ADD.choose(target_of(a.device), tokens=tokens)
    launch(
        _add_kernel,
        (tokens, triton.cdiv(d, chosen["BLOCK"])),
        {
            "a_ptr": a, "b_ptr": b, "out_ptr": out,
            "a_stride_row": a.stride(0), "b_stride_row": b.stride(0), "out_stride_row": out.stride(0), "d": d,
        },
        {"PDL": pdl_of(a, a.shape[0])},
        chosen,
    )  # fmt: skip
