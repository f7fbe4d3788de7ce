"""On a GPU: every kernel of the registry against its reference, under graph capture, and on two streams at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from dsv4_kernels.registry import Case, KernelSpec, specs
from dsv4_kernels.testing.compare import clone, run
from dsv4_kernels.testing.inputs import Inputs
from dsv4_kernels.testing.walk import attempt
from dsv4_kernels.workspace import zeroed_workspace

pytestmark = pytest.mark.gpu

CASES = [(s, c) for s in specs().values() for c in s.cases if c.small or not c.bench]
FIRST = [(s, next(c for c in s.cases if c.compiled)) for s in specs().values()]


def name_of(value: object) -> str:
    return str(getattr(value, "name", value))


@pytest.fixture(scope="session")
def gpu() -> torch.device:
    return torch.device("cuda")


@pytest.mark.parametrize(("spec", "case"), CASES, ids=name_of)
def test_agrees_with_its_reference(spec: KernelSpec, case: Case, gpu: torch.device, seed: int) -> None:
    verdict = attempt(spec, case, gpu, spec.wrapper(), seed)
    assert verdict.passes, verdict.text


def written(spec: KernelSpec, call: Callable[..., Any], arguments: dict[str, Any]) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in run(spec, call, arguments).items()}


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(a[n].contiguous().view(torch.uint8), b[n].contiguous().view(torch.uint8)) for n in a)


@pytest.mark.parametrize(("spec", "case"), FIRST, ids=name_of)
def test_a_captured_graph_gives_the_same_bits(spec: KernelSpec, case: Case, gpu: torch.device, seed: int) -> None:
    call, given = spec.wrapper(), case.build(Inputs(gpu, seed))
    eager = written(spec, call, clone(given))
    replayed = clone(given)
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        call(**clone(given))
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = run(spec, call, replayed)
    for name, value in given.items():
        if isinstance(value, torch.Tensor) and name not in spec.outputs:
            replayed[name].copy_(value)
    graph.replay()
    torch.cuda.synchronize()
    assert same(eager, out)


@pytest.mark.parametrize(("spec", "case"), FIRST, ids=name_of)
def test_two_streams_at_once_give_the_same_bits(spec: KernelSpec, case: Case, gpu: torch.device, seed: int) -> None:
    call = spec.wrapper()
    given = [case.build(Inputs(gpu, seed + n)) for n in range(2)]
    alone = [written(spec, call, clone(arguments)) for arguments in given]
    for _ in range(10):
        sets = [clone(arguments) for arguments in given]
        torch.cuda.synchronize()
        together = []
        for arguments in sets:
            with torch.cuda.stream(torch.cuda.Stream()):
                together.append(run(spec, call, arguments))
        torch.cuda.synchronize()
        assert all(same(a, b) for a, b in zip(alone, together, strict=True))


def test_zeroed_memory_of_a_capture_is_its_own(gpu: torch.device) -> None:
    def asked() -> torch.Tensor:
        return zeroed_workspace("test_registry_walk", (8,), torch.int32, gpu)

    stream, graphs, seen = torch.cuda.Stream(), [], []
    for _ in range(2):
        graphs.append(torch.cuda.CUDAGraph())
        with torch.cuda.graph(graphs[-1], stream=stream):
            first = asked()
            seen.append([first.clone(), first.fill_(7), asked().clone()])
    with torch.cuda.stream(stream):
        eager = asked().clone()
    torch.cuda.synchronize()
    assert eager.tolist() == [0] * 8
    for which in (1, 0, 1):
        graphs[which].replay()
        torch.cuda.synchronize()
        assert seen[which][0].tolist() == [0] * 8
        assert seen[which][2].tolist() == [7] * 8
