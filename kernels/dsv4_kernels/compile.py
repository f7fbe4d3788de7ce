"""Compile kernels for a target that need not be here, and read what the compiler made of them.

Wrappers run on ``meta`` tensors with the target forced and each config pinned in turn; what they would have launched
is compiled. So what is checked is what is launched, argument types and alignments included.
"""

from __future__ import annotations

import inspect
import re
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from dsv4_kernels.launch import CARVEOUT, Config, Launch, pinned, recorded
from dsv4_kernels.registry import Arguments, Case, KernelSpec
from dsv4_kernels.target import TARGETS, Target, forced_target
from dsv4_kernels.testing.inputs import Inputs

_TYPES = {
    torch.bfloat16: "bf16",
    torch.float16: "fp16",
    torch.float32: "fp32",
    torch.float64: "fp64",
    torch.int8: "i8",
    torch.uint8: "u8",
    torch.int16: "i16",
    torch.int32: "i32",
    torch.int64: "i64",
    torch.bool: "i1",
    torch.float8_e4m3fn: "fp8e4nv",
    torch.float8_e4m3fnuz: "fp8e4b8",
}


@dataclass(frozen=True)
class Job:
    """One compilation: a jit function with argument types, constants and config, for the kernel ``name``."""

    name: str
    label: str
    target: Target
    launch: Launch
    bound: str

    @property
    def key(self) -> tuple[Any, ...]:
        """Equal for jobs that give the same code."""
        signature, constants, attributes = arguments_of(self.launch)
        return (
            self.launch.kernel.__name__,
            _frozen(signature),
            _frozen(constants),
            _frozen(attributes),
            self.launch.config,
        )


@dataclass(frozen=True)
class Compiled:
    """What the compiler says of one kernel in one config for one target.

    ``registers``: per lane (AMD: vector registers, accumulation ones included). ``lds_bytes``: shared memory of a
    program. ``spills``: registers or bytes that were spilled, 0 if none. ``occupancy``: share of the unit's waves
    that fit. ``limited_by``: what limits it. ``bound``: memory or compute, by the cost model of the case.
    ``trouble`` is empty if all is well.
    """

    name: str
    config: str
    target: str
    registers: int
    lds_bytes: int
    spills: int
    occupancy: float
    limited_by: str
    bound: str
    trouble: str = ""

    def to_json(self) -> dict[str, Any]:
        """The fields by name."""
        return asdict(self)


def jobs(spec: KernelSpec, target: Target) -> Iterator[Job]:
    """Every distinct compilation that ``spec`` can need on ``target``: its compiled cases in each of its configs."""
    seen = set()
    with forced_target(target.arch):
        for variant, wrapper in spec.wrappers(target.arch, untried=True).items():
            for case in _compiled_cases(spec):
                arguments = case.build(Inputs("meta", 0))
                bound = _bound(spec, arguments, target)
                for pins in _choices(spec, target):
                    with pinned(pins), recorded() as launches:
                        wrapper(**arguments)
                    for launch in launches:
                        kernel = spec.name if variant == "triton" else f"{spec.name}.{variant}"
                        label = (
                            f"{case.name} {launch.kernel.__name__.strip('_').removesuffix('_kernel')} {launch.config}"
                        )
                        job = Job(kernel, label, target, launch, bound)
                        if job.key not in seen:
                            seen.add(job.key)
                            yield job


def _compiled_cases(spec: KernelSpec) -> list[Case]:
    cases = [case for case in spec.cases if case.compiled]
    if not cases:
        raise ValueError(f"kernel {spec.name} has no case marked compiled")
    return cases


def _choices(spec: KernelSpec, target: Target) -> Iterator[Mapping[str, Config]]:
    """Pins that together show every config of every table; tables are varied side by side, not multiplied."""
    options = {table.name: table.configs(target) for table in spec.tables if table.serves(target)}
    for at in range(max(len(configs) for configs in options.values())):
        yield {name: configs[min(at, len(configs) - 1)] for name, configs in options.items()}


def _bound(spec: KernelSpec, arguments: Arguments, target: Target) -> str:
    cost = spec.cost(arguments)
    memory, compute = cost.bytes / (target.copy_gbps * 1e9), cost.flops / (target.bf16_tflops * 1e12)
    return "compute" if compute > memory else "memory"


def arguments_of(launch: Launch) -> tuple[dict[str, str], dict[str, Any], dict[tuple[int], list[list[Any]]]]:
    """Signature, constants and alignment attributes of a launch, as Triton's own call would derive them."""
    signature: dict[str, str] = {}
    constants: dict[str, Any] = {}
    attributes: dict[tuple[int], list[list[Any]]] = {}
    parameters = inspect.signature(launch.kernel.fn).parameters
    general = {p.name for p in launch.kernel.params if p.do_not_specialize}
    for at, name in enumerate(parameters):
        value = launch.constants[name] if name in launch.constants else launch.arguments[name]
        one = isinstance(value, int) and value == 1 and name not in general
        if name in launch.constants or value is None or one:
            signature[name], constants[name] = "constexpr", value
            continue
        signature[name] = _type(value)
        aligned = value.storage_offset() * value.element_size() if isinstance(value, torch.Tensor) else value
        if (
            isinstance(value, torch.Tensor | int)
            and not isinstance(value, bool)
            and name not in general
            and aligned % 16 == 0
        ):
            attributes[(at,)] = [["tt.divisibility", 16]]
    return signature, constants, attributes


def _type(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"*{_TYPES[value.dtype]}"
    if isinstance(value, bool):
        return "i1"
    if isinstance(value, int):
        return "i32" if -(2**31) <= value < 2**31 else "i64"
    if isinstance(value, float):
        return "fp32"
    if hasattr(value, "block_shape"):  # a host-side tensor descriptor
        layout = f",{value.layout!r}" if hasattr(value, "layout") else ""  # Gluon's are made for one
        return f"tensordesc<{_TYPES[value.base.dtype]}{list(value.block_shape)}{layout}>"
    raise TypeError(f"a kernel argument is a {type(value).__name__}")


def compile_job(job: Job) -> Compiled:
    """Compile one job, with Triton's cache; any trouble is in the result, nothing is raised for it."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import compile as triton_compile

    signature, constants, attributes = arguments_of(job.launch)
    config, target = job.launch.config, job.target
    source = _source(job.launch.kernel)(job.launch.kernel, signature, constants, attributes)
    amd = target.vendor == "amd"
    where = GPUTarget("hip", target.arch, target.wave) if amd else GPUTarget("cuda", int(target.arch[3:]), target.wave)
    given = {name: value for name, value in config.options if name != CARVEOUT}
    options = {"num_warps": config.num_warps, "num_stages": config.num_stages, **given}
    try:
        built = triton_compile(source, target=where, options=options)
        registers, spills = _amd_registers(built.asm["amdgcn"]) if amd else _nvidia_registers(built, target)
    except Exception as error:  # noqa: BLE001 - whatever the compiler throws is this job's result
        text = " ".join(f"{type(error).__name__}: {error}".split())
        return Compiled(
            job.name, job.label, target.arch, 0, 0, 0, 0.0, "", job.bound, f"does not compile: {text[-400:]}"
        )
    lds = int(built.metadata.shared)
    occupancy, limited_by = occupancy_of(target, registers, lds, config.num_warps)
    trouble = [f"spills {spills}"] if spills else []
    if lds > target.lds_bytes:
        trouble.append(f"takes {lds} bytes of LDS, a program has {target.lds_bytes}")
    return Compiled(
        job.name, job.label, target.arch, registers, lds, spills, occupancy, limited_by, job.bound, "; ".join(trouble)
    )


def _source(kernel: Any) -> Any:
    """The class of sources of ``kernel``: Gluon functions have their own."""
    from triton.compiler import ASTSource
    from triton.experimental.gluon._runtime import GluonASTSource, GluonJITFunction

    return GluonASTSource if isinstance(kernel, GluonJITFunction) else ASTSource


def compile_all(work: Iterable[Job], processes: int = 1) -> list[Compiled]:
    """Compile in ``processes`` forked children at once; a compiler that aborts is the trouble of its job."""
    from dsv4_kernels.testing.forked import forked_map

    return forked_map(compile_job, list(work), processes, _died)


def _died(job: Job, exit_code: int) -> Compiled:
    trouble = f"does not compile: the compiler ended the process with exit code {exit_code}"
    return Compiled(job.name, job.label, job.target.arch, 0, 0, 0, 0.0, "", job.bound, trouble)


def occupancy_of(target: Target, registers: int, lds: int, num_warps: int) -> tuple[float, str]:
    """Share of a unit's waves that programs of ``num_warps`` fill, and what limits it: registers, lds or waves."""
    grain = 8
    per_lane = max(-(-registers // grain) * grain, grain)
    fits = {
        "registers": target.registers // (per_lane * target.wave) // num_warps,
        "lds": target.lds_unit_bytes // (lds + target.lds_reserved) if lds + target.lds_reserved else 10**6,
        "waves": target.waves // num_warps,
    }
    limit = min(fits, key=lambda name: fits[name])
    return min(1.0, fits[limit] * num_warps / target.waves), limit


def _amd_registers(assembly: str) -> tuple[int, int]:
    """Vector registers of a lane, and spilled registers, from the metadata at the end of the assembly."""
    found = {name: int(value) for name, value in re.findall(r"\.(\w+):\s+(\d+)", assembly)}
    vector = found["vgpr_count"]  # on CDNA this already counts accumulation registers
    return vector, found["vgpr_spill_count"] + found["sgpr_spill_count"]


def _nvidia_registers(built: Any, target: Target) -> tuple[int, int]:
    """Registers of a lane, and bytes that are spilled, from the cubin's resource report.

    A stack frame may also belong to a called division; only then the assembler is asked for the spills in it.
    """
    from triton import knobs

    with tempfile.TemporaryDirectory() as folder:
        cubin, ptx = Path(folder) / "kernel.cubin", Path(folder) / "kernel.ptx"
        cubin.write_bytes(built.asm["cubin"])
        report = _output(knobs.nvidia.cuobjdump.path, "--dump-resource-usage", str(cubin))
        found = {name: int(value) for name, value in re.findall(r"\b(REG|STACK|LOCAL):(\d+)", report)}
        if found["STACK"] == 0 and found["LOCAL"] == 0:
            return found["REG"], 0
        ptx.write_text(built.asm["ptx"], encoding="utf-8")
        tool = knobs.nvidia.ptxas_blackwell if target.arch == "sm_100" else knobs.nvidia.ptxas
        arch = re.search(r"\.target (\w+)", built.asm["ptx"])
        assert arch is not None
        said = _output(tool.path, "-v", f"--gpu-name={arch.group(1)}", str(ptx), "-o", str(cubin))
    return found["REG"], sum(int(size) for size in re.findall(r"(\d+) bytes spill", said))


def _output(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stdout + done.stderr


def targets() -> tuple[str, ...]:
    """The archs that can be compiled for."""
    return tuple(TARGETS)


def _frozen(mapping: Mapping[Any, Any]) -> tuple[Any, ...]:
    return tuple(sorted((str(k), str(v)) for k, v in mapping.items()))
