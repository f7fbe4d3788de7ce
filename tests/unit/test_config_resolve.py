"""The overlap table cell by cell, and precedence of API, command line, environment and default."""

import pytest

from dsv4lab.config.resolve import Choices, DeviceFacts, DeviceKind, Resolved, resolve
from dsv4lab.env import EnvSettings, read_env
from dsv4lab.errors import UsageError

OVERLAP = "SGLANG_OPT_USE_MULTI_STREAM_OVERLAP"
MOE = "SGLANG_ROCM_USE_MULTI_STREAM"
BACKEND = "SGLANG_HACK_FLASHMLA_BACKEND"
UNIFIED_FP8 = "SGLANG_DSV4_UNIFIED_KV_FP8"
CPU, CUDA, HIP = (DeviceFacts(kind) for kind in DeviceKind)

TABLE = [
    ({}, CPU, "off", "default"),
    ({}, CUDA, "auto", "default"),
    ({}, HIP, "off", "default"),
    ({OVERLAP: "1"}, CPU, "hip", f"env {OVERLAP}"),
    ({OVERLAP: "1"}, CUDA, "cuda", f"env {OVERLAP}"),
    ({OVERLAP: "1"}, HIP, "hip", f"env {OVERLAP}"),
    ({OVERLAP: "0"}, CPU, "off", f"env {OVERLAP}"),
    ({OVERLAP: "0"}, CUDA, "off", f"env {OVERLAP}"),
    ({OVERLAP: "0"}, HIP, "off", f"env {OVERLAP}"),
]


@pytest.mark.parametrize(("environ", "device", "plan", "origin"), TABLE)
def test_overlap_table(environ: dict[str, str], device: DeviceFacts, plan: str, origin: str) -> None:
    settings = resolve(device, read_env(environ))
    assert settings.plan == Resolved(plan, origin)
    assert settings.moe_overlap == Resolved(False, "default")


@pytest.mark.parametrize(("environ", "device", "plan", "origin"), TABLE)
def test_rocm_multi_stream_adds_moe_and_leaves_the_plan(environ, device, plan, origin) -> None:
    settings = resolve(device, read_env({**environ, MOE: "1"}))
    assert settings.plan == Resolved(plan, origin)
    assert settings.moe_overlap == Resolved(True, f"env {MOE}")


def test_rocm_multi_stream_0_adds_nothing_and_says_where_from() -> None:
    assert resolve(HIP, read_env({MOE: "0"})).moe_overlap == Resolved(False, f"env {MOE}")


@pytest.mark.parametrize("device", [CPU, CUDA, HIP])
@pytest.mark.parametrize("environ", [{}, {OVERLAP: "0"}, {OVERLAP: "1", MOE: "1"}])
def test_explicit_plan_wins_over_environment(device: DeviceFacts, environ: dict[str, str]) -> None:
    env = read_env(environ)
    by_cli = resolve(device, env, cli=Choices(plan="mine"))
    assert by_cli.plan == Resolved("mine", "cli")
    by_api = resolve(device, env, cli=Choices(plan="mine"), api=Choices(plan={"name": "x", "rules": []}))
    assert by_api.plan == Resolved({"name": "x", "rules": []}, "api")
    for settings in (by_cli, by_api):
        assert settings.moe_overlap == Resolved(False, "default")
        assert settings.token_gate == Resolved(None, "default")


def test_explicit_moe_joins_an_explicit_plan() -> None:
    settings = resolve(HIP, EnvSettings(), cli=Choices(plan="hip"), api=Choices(moe_overlap=True))
    assert settings.moe_overlap == Resolved(True, "api")


@pytest.mark.parametrize("environ", [{}, {OVERLAP: "1"}])
@pytest.mark.parametrize(("blackwell", "gate"), [(False, 64), (True, 128)])
def test_token_gate_on_cuda(environ: dict[str, str], blackwell: bool, gate: int) -> None:
    settings = resolve(DeviceFacts(DeviceKind.CUDA, blackwell), read_env(environ))
    assert settings.token_gate.value == gate


@pytest.mark.parametrize(("device", "environ"), [(CUDA, {OVERLAP: "0"}), (HIP, {OVERLAP: "1"}), (CPU, {OVERLAP: "1"})])
def test_no_token_gate_elsewhere(device: DeviceFacts, environ: dict[str, str]) -> None:
    assert resolve(device, read_env(environ)).token_gate.value is None


def test_token_gate_can_be_set() -> None:
    assert resolve(HIP, EnvSettings(), api=Choices(token_gate=32)).token_gate == Resolved(32, "api")


@pytest.mark.parametrize(("device", "forks"), [(CPU, True), (CUDA, True), (HIP, False)])
def test_eager_fork(device: DeviceFacts, forks: bool) -> None:
    assert resolve(device, EnvSettings()).eager_fork == Resolved(forks, "default")
    assert resolve(device, EnvSettings(), api=Choices(eager_fork=True)).eager_fork == Resolved(True, "api")


@pytest.mark.parametrize(
    ("device", "value", "origin"),
    [
        (CPU, 6, "env GPU_MAX_HW_QUEUES"),
        (HIP, 6, "env GPU_MAX_HW_QUEUES"),
        (CUDA, 16, "env CUDA_DEVICE_MAX_CONNECTIONS"),
    ],
)
def test_hw_queues_come_from_the_device_s_variable(device: DeviceFacts, value: int, origin: str) -> None:
    env = read_env({"GPU_MAX_HW_QUEUES": "6", "CUDA_DEVICE_MAX_CONNECTIONS": "16"})
    assert resolve(device, env).hw_queues == Resolved(value, origin)
    assert resolve(device, env, cli=Choices(hw_queues=2)).hw_queues == Resolved(2, "cli")
    assert resolve(device, env, cli=Choices(hw_queues=2), api=Choices(hw_queues=3)).hw_queues == Resolved(3, "api")


@pytest.mark.parametrize(("device", "default"), [(CPU, 4), (HIP, 4), (CUDA, 8)])
def test_hw_queue_defaults(device: DeviceFacts, default: int) -> None:
    assert resolve(device, EnvSettings()).hw_queues == Resolved(default, "default")


def test_remaining_names() -> None:
    env = read_env(
        {
            "SGLANG_HACK_FLASHMLA_BACKEND": "unified_kv_triton",
            "SGLANG_USE_AITER": "1",
            "SGLANG_DSV4_UNIFIED_KV_FP8": "1",
        }
    )
    settings = resolve(HIP, env, cli=Choices(use_aiter=False))
    assert settings.attention_backend == Resolved("unified_kv_triton", "env SGLANG_HACK_FLASHMLA_BACKEND")
    assert settings.use_aiter == Resolved(False, "cli")
    assert settings.unified_kv_fp8 == Resolved(True, "env SGLANG_DSV4_UNIFIED_KV_FP8")


@pytest.mark.parametrize("device", [CPU, CUDA, HIP])
@pytest.mark.parametrize(
    ("environ", "layout", "dtype"),
    [
        ({}, ("unified", "default"), ("auto", "default")),
        ({BACKEND: "unified_kv_triton"}, ("unified", f"env {BACKEND}"), ("auto", "default")),
        ({BACKEND: "triton"}, ("three_pool", f"env {BACKEND}"), ("auto", "default")),
        ({BACKEND: "auto"}, ("three_pool", f"env {BACKEND}"), ("auto", "default")),
        ({UNIFIED_FP8: "1"}, ("unified", "default"), ("fp8", f"env {UNIFIED_FP8}")),
        ({UNIFIED_FP8: "0"}, ("unified", "default"), ("auto", "default")),
        ({UNIFIED_FP8: "1", BACKEND: "triton"}, ("three_pool", f"env {BACKEND}"), ("auto", "default")),
    ],
)
def test_the_seeds_switches_choose_the_pool(
    environ: dict[str, str], layout: tuple[str, str], dtype: tuple[str, str], device: DeviceFacts
) -> None:
    settings = resolve(device, read_env(environ))
    assert settings.kv_layout == Resolved(*layout)
    assert settings.kv_cache_dtype == Resolved(*dtype)
    assert settings.index_cache_dtype == Resolved("auto", "default")


def test_explicit_formats_win() -> None:
    env = read_env({BACKEND: "triton", UNIFIED_FP8: "1"})
    cli = Choices(kv_layout="unified", kv_cache_dtype="bf16", index_cache_dtype="fp4")
    settings = resolve(HIP, env, cli=cli)
    assert settings.kv_layout == Resolved("unified", "cli")
    assert settings.kv_cache_dtype == Resolved("bf16", "cli")
    assert settings.index_cache_dtype == Resolved("fp4", "cli")
    auto = resolve(HIP, env, cli=Choices(kv_layout="unified", kv_cache_dtype="auto"))
    assert auto.kv_cache_dtype == Resolved("fp8", f"env {UNIFIED_FP8}"), "auto leaves it to the environment"


@pytest.mark.parametrize(
    ("choices", "text"),
    [
        (Choices(hw_queues=0), r"hw_queues: got 0 \(cli\), expected an integer from 1 to 32"),
        (Choices(hw_queues=True), r"hw_queues: got True \(cli\)"),
        (Choices(token_gate=0), r"token_gate: got 0 \(cli\), expected an integer of at least 1"),
        (Choices(plan=""), r"plan: got '' \(cli\), expected a name or an object"),
    ],
)
def test_choices_out_of_range(choices: Choices, text: str) -> None:
    with pytest.raises(UsageError, match=text):
        resolve(CPU, EnvSettings(), cli=choices)


def test_to_json_has_value_and_origin() -> None:
    data = resolve(CPU, EnvSettings(), api=Choices(plan="hip")).to_json()
    assert data["plan"] == {"value": "hip", "origin": "api"}
    assert data["token_gate"] == {"value": None, "origin": "default"}
    assert next(iter(data)) == "plan"
