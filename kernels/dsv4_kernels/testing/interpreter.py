"""Triton's interpreter, put right where it is wrong. To be imported in a process that has ``TRITON_INTERPRET=1``.

As of Triton 3.6 the interpreter holds bf16 and fp8 as bit patterns in numpy integers, and

- ``tl.dot`` of bf16 operands multiplies the bit patterns as integers;
- casts of float32 to bf16 truncate, and casts to fp8 neither round to nearest even nor saturate;
- loop bounds that are tensors fail with NumPy 2.4 (an array of one element is no longer an integer);
- arithmetic on bf16 (``a * b``, ``a + b``, comparisons) works on the bit patterns.

:func:`repair` replaces all but the last; our kernels never do that: they compute in float32. Kernels that use
inline assembly or TMA descriptors cannot be interpreted at all; their cases say so.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch


def active() -> bool:
    """Whether kernels that are defined from now on run under the interpreter."""
    from triton import knobs

    return bool(knobs.runtime.interpret)


def repair() -> None:
    """Make casts and dots of bf16 and fp8 right in this process."""
    from triton.runtime import interpreter

    broken = interpreter._convert_float

    def convert(value: Any, source: Any, target: Any, rounding_mode: Any) -> Any:
        if str(source) in _TORCH and str(target) in _TORCH:
            return _convert(value, str(source), str(target))
        return broken(value, source, target, rounding_mode)

    def dot(self: Any, a: Any, b: Any, d: Any, input_precision: Any, max_num_imprecise_acc: Any) -> Any:
        del self, input_precision, max_num_imprecise_acc
        left, right = (_convert(x.data, str(x.dtype.scalar), "fp32").view(np.float32) for x in (a, b))
        return interpreter.TensorHandle(np.matmul(left, right) + d.data, d.dtype.scalar)

    def cast(self: Any, source: Any, kind: Any) -> Any:
        names = str(source.dtype.scalar), str(kind.scalar)
        if all(name in _TORCH for name in names):
            data = _convert(source.data, *names).view(interpreter._get_np_dtype(kind))
        else:
            data = source.data.astype(interpreter._get_np_dtype(kind))
        return interpreter.TensorHandle(data, kind.scalar)

    patch = interpreter._patch_lang_tensor

    def patch_tensor(tensor: Any, scope: Any) -> None:
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    interpreter._patch_lang_tensor = patch_tensor
    interpreter._convert_float = convert
    interpreter.InterpreterBuilder.create_dot = dot
    interpreter.InterpreterBuilder.cast_impl = cast
    for name in ("si_to_fp", "ui_to_fp", "fp_to_si", "fp_to_ui", "fp_ext", "fp_trunc"):
        setattr(interpreter.InterpreterBuilder, f"create_{name}", cast)


_TORCH = {
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "fp32": torch.float32,
    "fp8e4nv": torch.float8_e4m3fn,
    "fp8e4b8": torch.float8_e4m3fnuz,
}
_BITS = {1: np.uint8, 2: np.uint16, 4: np.uint32}


def _convert(value: Any, source: str, target: str) -> Any:
    """Bit patterns of ``value`` converted from one float type to another, round to nearest even."""
    kind, into = _TORCH[source], _TORCH[target]
    raw = np.ascontiguousarray(value)
    bits = torch.from_numpy(raw.view(_signed(raw.itemsize)).reshape(raw.shape).copy())
    done = bits.view(kind).to(torch.float32).to(into)
    out = done.contiguous().view(_SIGNED_TORCH[into.itemsize]).numpy()
    return out.view(_BITS[into.itemsize]).reshape(raw.shape)


def _signed(size: int) -> Any:
    return {1: np.int8, 2: np.int16, 4: np.int32}[size]


_SIGNED_TORCH = {1: torch.int8, 2: torch.int16, 4: torch.int32}
