"""``dsv4lab doctor``: what is installed, which devices there are, which settings are in force and why."""

from __future__ import annotations

import argparse
import platform
from importlib import metadata
from typing import Any

from rich.markup import escape

from dsv4lab import host
from dsv4lab._version import __version__
from dsv4lab.cli.base import Command
from dsv4lab.cli.output import console, emit_json, table
from dsv4lab.config.engine import THREE_POOL
from dsv4lab.config.resolve import DeviceFacts, DeviceKind, ResolvedSettings, resolve
from dsv4lab.engine.devices import find_devices
from dsv4lab.env import VARIABLES, EnvSettings, read_env
from dsv4lab.units import bytes_text

REQUIRED = ("numpy", "msgspec", "rich", "torch", "safetensors", "tokenizers", "plotly")
OPTIONAL = (
    "triton",
    "amd-aiter",
    "aiohttp",
    "transformers",
    "jupyterlab",
    "ipywidgets",
    "tensorboard",
    "torch-tb-profiler",
)

_READ_ON = {
    "gpu_max_hw_queues": (DeviceKind.CPU, DeviceKind.HIP),
    "cuda_device_max_connections": (DeviceKind.CUDA,),
    "use_aiter": (DeviceKind.HIP,),
}
"""Where a variable that only some devices read is read."""


class DoctorCommand(Command):
    """Say what this machine and this environment are."""

    name = "doctor"
    help = "what is installed, which devices there are, which settings are in force and where each came from"
    examples = (
        "dsv4lab doctor",
        "dsv4lab doctor --json",
        "dsv4lab doctor --device hip",
    )

    def prepare(self, parser: argparse.ArgumentParser) -> None:
        """Argument: the device whose settings are wanted."""
        parser.add_argument(
            "--device",
            choices=[kind.value for kind in DeviceKind],
            default=DeviceKind.CPU.value,
            help="kind of device whose settings are shown (default: cpu)",
        )

    def run(self, args: argparse.Namespace) -> int:
        """Print the findings; always 0. A malformed environment variable is an error, as in every command."""
        env = read_env()
        kind = DeviceKind(args.device)
        devices, problems = find_devices()
        blackwell = any(d["kind"] == kind and d["blackwell"] for d in devices)
        settings = resolve(DeviceFacts(kind, blackwell), env)
        findings = {
            "dsv4lab": __version__,
            "python": platform.python_version(),
            "platform": platform.platform(),
            "cpu": host.cpu_name(),
            "cores": host.usable_cores(),
            "memory_bytes": host.memory_bytes(),
            "packages": {name: _installed(name) for name in REQUIRED + OPTIONAL},
            "devices": devices,
            "distributed": find_backends(),
            "device": kind.value,
            "environment": env.in_force(),
            "settings": settings.to_json(),
            "warnings": problems + warnings_of(kind, env, settings, devices),
        }
        if args.json:
            emit_json(findings)
        else:
            _show(findings)
        return 0


def find_backends() -> list[str]:
    """Backends of torch.distributed for runs over several ranks: ``gloo`` between CPUs, ``nccl`` between GPUs."""
    try:
        from dsv4lab.parallel.groups import backends
    except (ImportError, OSError):  # torch is missing or broken, which the devices tell
        return []
    return list(backends())


def warnings_of(
    kind: DeviceKind, env: EnvSettings, settings: ResolvedSettings, devices: list[dict[str, Any]]
) -> list[str]:
    """What the reader may have expected otherwise, one sentence each."""
    found = [f"{name} is not installed: pip install {name}" for name in REQUIRED if _installed(name) is None]
    for field, kinds in _READ_ON.items():
        if getattr(env, field) is not None and kind not in kinds:
            read_on = " and ".join(k.value for k in kinds)
            found.append(f"{VARIABLES[field]} is set, and is not read on {kind.value} (only on {read_on})")
    backend, layout = settings.attention_backend.value, settings.kv_layout.value
    if backend is not None and layout == THREE_POOL:
        variable = VARIABLES["flashmla_backend"]
        found.append(f"{variable} is {backend}: engines keep their rows in the former three pools, in fp8")
    if not any(device["kind"] == kind for device in devices):
        found.append(f"there is no {kind.value} device here: its settings are shown as they would be")
    queues, cores = settings.hw_queues.value, host.usable_cores()
    if kind is DeviceKind.CPU and queues > cores:
        found.append(f"{queues} hardware queues are {queues} threads on {cores} cores: at most {cores} ops run at once")
    return found


def _installed(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _show(findings: dict[str, Any]) -> None:
    out = console()
    memory = findings["memory_bytes"]
    out.print(
        f"[lab.title]dsv4lab {findings['dsv4lab']}[/]  Python {findings['python']}  {escape(findings['platform'])}"
    )
    size = f", {bytes_text(memory)}" if memory else ""
    out.print(f"{escape(findings['cpu'])}, {findings['cores']} usable cores{size}\n")
    table(["package", "version"], [_package(*item) for item in findings["packages"].items()], left=2)
    rows = [[escape(d["name"]), d["kind"], bytes_text(d["memory_bytes"] or 0)] for d in findings["devices"]]
    table(["device", "kind", "memory"], rows, left=2)
    backends = ", ".join(findings["distributed"]) or "torch has no backend for it"
    out.print(f"several ranks (--tp-size, --dp-size): {backends}\n")
    settings = findings["settings"].items()
    rows = [[name, escape(_value(s["value"])), _origin(s["origin"])] for name, s in settings]
    table([f"setting on {findings['device']}", "value", "from"], rows, left=3)
    for warning in findings["warnings"]:
        out.print(f"[lab.warn]warning:[/] {escape(warning)}")


def _package(name: str, version: str | None) -> list[str]:
    missing = "[lab.bad]missing[/]" if name in REQUIRED else "not installed"
    return [name, missing if version is None else version]


def _origin(origin: str) -> str:
    return origin if origin == "default" else f"[lab.key]{escape(origin)}[/]"


def _value(value: object) -> str:
    if value is None:
        return "none"
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else str(value)
