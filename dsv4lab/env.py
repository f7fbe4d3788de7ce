"""The one reader of ``os.environ``: the variables that serving users already set, checked when they are read."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields

from dsv4lab.errors import EnvError

MAX_QUEUES = 32
FLASHMLA_BACKENDS = ("aiter_sparse", "auto", "comparison", "tilelang", "torch", "triton", "unified_kv_triton")

VARIABLES: Mapping[str, str] = {
    "gpu_max_hw_queues": "GPU_MAX_HW_QUEUES",
    "cuda_device_max_connections": "CUDA_DEVICE_MAX_CONNECTIONS",
    "multi_stream_overlap": "SGLANG_OPT_USE_MULTI_STREAM_OVERLAP",
    "rocm_multi_stream": "SGLANG_ROCM_USE_MULTI_STREAM",
    "flashmla_backend": "SGLANG_HACK_FLASHMLA_BACKEND",
    "use_aiter": "SGLANG_USE_AITER",
    "unified_kv_fp8": "SGLANG_DSV4_UNIFIED_KV_FP8",
}
"""Field of :class:`EnvSettings` to the variable that it comes from."""

_NCCL_INTERFACE = "NCCL_SOCKET_IFNAME"
_TRUE = ("1", "true", "yes", "on")
_FALSE = ("0", "false", "no", "off")


@dataclass(frozen=True, slots=True)
class EnvSettings:
    """What the environment says; a field is None when its variable is unset (unset is not 0)."""

    gpu_max_hw_queues: int | None = None
    """HIP hardware queues per priority, 1 to 32."""
    cuda_device_max_connections: int | None = None
    """CUDA work queues, 1 to 32."""
    multi_stream_overlap: bool | None = None
    rocm_multi_stream: bool | None = None
    flashmla_backend: str | None = None
    use_aiter: bool | None = None
    unified_kv_fp8: bool | None = None

    def in_force(self) -> dict[str, int | bool | str]:
        """Variable to value, for the variables that are set."""
        values = {VARIABLES[field.name]: getattr(self, field.name) for field in fields(self)}
        return {variable: value for variable, value in values.items() if value is not None}


def read_env(environ: Mapping[str, str] | None = None) -> EnvSettings:
    """The settings in ``environ``, by default this process's.

    Raises :class:`EnvError` naming the variable and what it takes when its value is malformed.
    """
    source = os.environ if environ is None else environ
    return EnvSettings(
        gpu_max_hw_queues=_integer(source, VARIABLES["gpu_max_hw_queues"]),
        cuda_device_max_connections=_integer(source, VARIABLES["cuda_device_max_connections"]),
        multi_stream_overlap=_flag(source, VARIABLES["multi_stream_overlap"]),
        rocm_multi_stream=_flag(source, VARIABLES["rocm_multi_stream"]),
        flashmla_backend=_choice(source, VARIABLES["flashmla_backend"], FLASHMLA_BACKENDS),
        use_aiter=_flag(source, VARIABLES["use_aiter"]),
        unified_kv_fp8=_flag(source, VARIABLES["unified_kv_fp8"]),
    )


@dataclass(frozen=True, slots=True)
class Launch:
    """What ``torchrun`` tells a process that it starts: its rank, how many there are, and where they meet."""

    rank: int
    world_size: int
    address: str
    port: int
    run_id: str


def read_launch(environ: Mapping[str, str] | None = None) -> Launch | None:
    """How this process was launched; None without torchrun. Raises :class:`EnvError` if that is told in part only."""
    source = os.environ if environ is None else environ
    if "TORCHELASTIC_RUN_ID" not in source:
        return None
    numbers = {}
    for name in ("RANK", "WORLD_SIZE", "MASTER_PORT"):
        text = source.get(name, "")
        if not (text.isascii() and text.isdigit()):
            raise EnvError(f"environment variable {name}={text!r}: torchrun sets it to a number")
        numbers[name] = int(text)
    address = source.get("MASTER_ADDR", "localhost")
    return Launch(
        numbers["RANK"], numbers["WORLD_SIZE"], address, numbers["MASTER_PORT"], source["TORCHELASTIC_RUN_ID"]
    )


def rank_environ(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """What keeps NCCL's own connections on the loopback interface, where the user has not chosen another."""
    source = os.environ if environ is None else environ
    return {} if _NCCL_INTERFACE in source else {_NCCL_INTERFACE: "lo"}


def child_environ(changes: Mapping[str, str | None]) -> dict[str, str]:
    """The environment of this process for a child, with ``changes`` made; None removes a variable."""
    merged = {name: value for name, value in os.environ.items() if name not in changes}
    merged.update({name: value for name, value in changes.items() if value is not None})
    return merged


def _integer(environ: Mapping[str, str], variable: str) -> int | None:
    text = environ.get(variable)
    if text is None:
        return None
    digits = text.strip()
    if digits.isascii() and digits.isdigit() and len(digits) < 9 and 1 <= int(digits) <= MAX_QUEUES:
        return int(digits)
    raise EnvError(f"environment variable {variable}={text!r}: it takes an integer from 1 to {MAX_QUEUES}")


def _flag(environ: Mapping[str, str], variable: str) -> bool | None:
    text = environ.get(variable)
    if text is None:
        return None
    word = text.strip().lower()
    if word in _TRUE or word in _FALSE:
        return word in _TRUE
    raise EnvError(f"environment variable {variable}={text!r}: it takes 0 or 1 (or true/false, yes/no, on/off)")


def _choice(environ: Mapping[str, str], variable: str, allowed: tuple[str, ...]) -> str | None:
    text = environ.get(variable)
    if text is None or text in allowed:
        return text
    raise EnvError(f"environment variable {variable}={text!r}: it takes one of {', '.join(allowed)}")
