"""From a step to TPOT: what a request sees beside its own decode steps."""

from __future__ import annotations

from dataclasses import dataclass

from dsv4lab.predict.layer_ops import layers_ops
from dsv4lab.predict.oplist import ListedOp
from dsv4lab.predict.roofline import Scenario
from dsv4lab.queues.costs import Machine
from dsv4lab.queues.roof import duration_us

PREFILL_SHARE = 0.076
"""Share of the arithmetic roof that a prefill reaches.

From ATOM#1952 at concurrency 1 (TP4, side streams off): 156.3 tokens/s a chip and 73.66 tokens/s of decode leave 0.75 s
for a prompt of 7,400 tokens.
"""


@dataclass(frozen=True, slots=True)
class Serving:
    """``osl``: new tokens a request; ``accepted``: tokens a step yields; ``between_us``: host time between steps."""

    osl: int = 1024
    accepted: float = 1.0
    between_us: float = 0.0


ACCEPTED = {"none": 1.0, "mtp": 1.7, "dspark": 3.0}
"""Tokens that a step yields by kind of speculation: assumed."""


def prefill_us(scenario: Scenario, machine: Machine) -> float:
    """One prompt's prefill alone: every product's arithmetic at ``PREFILL_SHARE`` of the fp8 roof."""
    flops = sum(_flops(op) for op in layers_ops(scenario.model, scenario.shape))
    per_token = flops / scenario.tokens
    floor = machine["kernel_floor_us"]
    return (duration_us(machine, 0.0, per_token * scenario.isl, machine["cus"], "fp8") - floor) / PREFILL_SHARE


def _flops(op: ListedOp) -> float:
    return sum(k.flops for k in op.kernels)


def stall_us(scenario: Scenario, machine: Machine, serving: Serving) -> float:
    """What the prefills of the other requests add to each output token.

    While a request decodes its ``osl`` tokens each of the others is replaced once, and its prefill holds up everybody.
    """
    return (scenario.concurrency - 1) * prefill_us(scenario, machine) / serving.osl


def tpot_us(step_us: float, serving: Serving, stall: float) -> float:
    """Time per output token: steps with their host time, and the ``stall`` by prefills."""
    return (step_us + serving.between_us) / serving.accepted + stall
