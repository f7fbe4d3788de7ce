"""Cases, cost and check of the router."""

from __future__ import annotations

import torch

from dsv4_kernels.moe_route._launch import FEW, HASH_ROUTE, ROUTE, WORDS
from dsv4_kernels.moe_route.reference import moe_route_reference
from dsv4_kernels.registry import Arguments, Case, Cost, KernelSpec
from dsv4_kernels.testing.inputs import Inputs

FLASH, PRO = (4096, 256, 1.5), (7168, 384, 2.5)
VOCABULARY = 1000


def _route(
    inputs: Inputs, n: int, shape: tuple[int, int, float], *, table: bool = False, scoring: str = "sqrtsoftplus",
    bias: bool = True, renormalise: bool = True, dtype: torch.dtype = torch.bfloat16, top_k: int = 6,
) -> Arguments:  # fmt: skip
    d, experts, scale = shape
    return {
        "x": inputs.normal(n, d, dtype=dtype),
        "gate": inputs.normal(experts, d, dtype=dtype, scale=2.0 * d**-0.5),
        "bias": inputs.normal(experts, dtype=torch.float32, scale=0.1) if bias and not table else None,
        "table": inputs.integers(0, experts, VOCABULARY, top_k) if table else None,
        "token_ids": inputs.integers(0, VOCABULARY, n),
        "top_k": top_k, "scale": scale, "scoring": scoring, "renormalise": renormalise,
        "weights": inputs.empty(n, top_k, dtype=torch.float32),
        "experts": inputs.empty(n, top_k, dtype=torch.int64),
    }  # fmt: skip


def _negative(inputs: Inputs, shape: tuple[int, int, float]) -> Arguments:
    """Logits near -40, where log(1 + exp(x)) is 0 in float32."""
    arguments = _route(inputs, 3, shape, bias=False)
    if not inputs.meta:
        arguments["x"].fill_(1.0)
        arguments["gate"].copy_(inputs.uniform(*arguments["gate"].shape, low=-40.2, high=-39.8) / shape[0])
    return arguments


def _same(arguments: Arguments) -> Arguments:
    """Experts that are alike by threes: ties."""
    gate = arguments["gate"]
    if not gate.is_meta:
        gate.copy_(gate[torch.arange(gate.shape[0], device=gate.device) // 3])
    return arguments


def check_route(arguments: Arguments) -> None:
    """The choice is a best one in float64, up to the last places of float32; the weights are its own."""
    a = arguments
    if not a["x"].shape[0]:
        return
    own = {**a, "weights": torch.empty_like(a["weights"], dtype=torch.float64), "experts": a["experts"].clone()}
    wide = {n: v.double() if isinstance(v, torch.Tensor) and v.is_floating_point() else v for n, v in own.items()}
    logits = wide["x"] @ wide["gate"].t()
    scores = _scores(logits, a["scoring"])
    chosen = a["experts"]
    assert bool(((chosen >= 0) & (chosen < a["gate"].shape[0])).all()), "an expert is out of range"
    if a["table"] is not None:
        assert torch.equal(chosen, a["table"][a["token_ids"]]), "experts differ from the table"
    else:
        assert bool((chosen.sort(1).values.diff(dim=1) > 0).all()), "an expert was chosen twice"
        ranked = scores if a["bias"] is None else scores + wide["bias"]
        best = ranked.topk(a["top_k"], dim=1).values
        got = ranked.gather(1, chosen)
        slack = 1e-5 * best.abs().amax()
        assert bool((got >= best - slack).all()), f"a chosen expert is {float((best - got).amax()):.2e} from the best"
    w = scores.gather(1, chosen)
    if a["renormalise"]:
        w = w / (w.sum(1, keepdim=True) + 1e-20)
    off = float((a["weights"].double() - w * a["scale"]).norm() / (w * a["scale"]).norm())
    assert off < 1e-5, f"weights are off by {off:.2e}"


def _scores(logits: torch.Tensor, scoring: str) -> torch.Tensor:
    if scoring == "sqrtsoftplus":
        return (logits.clamp(min=0) + torch.log1p(torch.exp(-logits.abs()))).sqrt()
    return logits.sigmoid() if scoring == "sigmoid" else logits.softmax(-1)


def _cost(arguments: Arguments) -> Cost:
    x, gate = arguments["x"], arguments["gate"]
    rows = gate.shape[0] if arguments["table"] is None else min(gate.shape[0], arguments["experts"].numel())
    moved = x.numel() * x.element_size() + rows * gate.shape[1] * gate.element_size()
    moved += 12 * arguments["weights"].numel() + (0 if arguments["table"] is None else 8 * arguments["experts"].numel())
    return Cost(moved, 2 * x.shape[0] * rows * x.shape[1])


SPECS = (
    KernelSpec(
        "moe_route",
        moe_route_reference,
        "dsv4_kernels.moe_route.triton_op:moe_route",
        (
            Case("flash-1", lambda i: _route(i, 1, FLASH), small=False, compiled=True, bench=True),
            Case("flash-hash-1", lambda i: _route(i, 1, FLASH, table=True), compiled=True, bench=True),
            Case("pro-1", lambda i: _route(i, 1, PRO), small=False, bench=True),
            Case("flash-8", lambda i: _route(i, 8, FLASH), small=False, compiled=True, bench=True),
            Case("pro-5", lambda i: _route(i, 5, PRO), small=False),
            Case("small-1", lambda i: _route(i, 1, (256, 24, 1.5))),
            Case("small-5", lambda i: _route(i, 5, (448, 48, 1.5))),
            Case("small-20", lambda i: _route(i, 20, (256, 24, 1.5))),
            Case("small-hash-70", lambda i: _route(i, 70, (256, 24, 1.5), table=True)),
            Case("small-softmax", lambda i: _route(i, 3, (192, 8, 1.0), scoring="softmax", top_k=2, renormalise=False)),
            Case("small-sigmoid", lambda i: _route(i, 3, (192, 8, 1.0), scoring="sigmoid", bias=False, top_k=2)),
            Case(
                "softmax-2",
                lambda i: _route(i, 2, (192, 8, 1.0), scoring="softmax", top_k=2, renormalise=False),
                compiled=True,
            ),
            Case("sigmoid-2", lambda i: _route(i, 2, (192, 12, 1.0), scoring="sigmoid", bias=False, top_k=2)),
            Case("float32-2", lambda i: _route(i, 2, (192, 16, 1.0), dtype=torch.float32)),
            Case("flash-2", lambda i: _route(i, 2, FLASH), small=False),
            Case("pro-2", lambda i: _route(i, 2, PRO), small=False),
            Case("flash-16", lambda i: _route(i, 16, FLASH), small=False),
            Case("pro-16", lambda i: _route(i, 16, PRO), small=False),
            Case("pro-sigmoid-3", lambda i: _route(i, 3, PRO, scoring="sigmoid", bias=False, top_k=8), small=False),
            Case("flash-same-2", lambda i: _same(_route(i, 2, FLASH, bias=False, top_k=4)), small=False),
            Case("small-same-2", lambda i: _same(_route(i, 2, (256, 24, 1.5), bias=False, top_k=4))),
            Case("float32", lambda i: _route(i, 3, (192, 16, 1.0), dtype=torch.float32)),
            Case("float32-20", lambda i: _route(i, 20, (192, 16, 1.0), dtype=torch.float32)),
            Case("very-negative", lambda i: _negative(i, (256, 24, 1.5))),
            Case("empty", lambda i: _route(i, 0, (256, 24, 1.5))),
            Case("flash-700", lambda i: _route(i, 700, FLASH), small=False, compiled=True),
            Case("flash-8192", lambda i: _route(i, 8192, FLASH), small=False, bench=True),
        ),
        _cost,
        (ROUTE, HASH_ROUTE, FEW, WORDS),
        outputs=("weights", "experts"),
        verify=check_route,
        variants={
            "portable": ("dsv4_kernels.moe_route.triton_op:moe_route_portable", "sm_90"),
            "words": ("dsv4_kernels.moe_route.triton_op:moe_route_by_words", "sm_90"),
        },
    ),
)
