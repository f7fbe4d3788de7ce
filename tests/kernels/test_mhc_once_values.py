"""Hyper-connections that read their streams once: what their roles compute, a tile of a ragged batch, on the CPU."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("triton")

from dsv4_kernels import mhc_pre_post
from dsv4_kernels.mhc_pre_post.cases import _post_pre, _pre
from dsv4_kernels.mhc_pre_post.once import HEAD, RECORD, SLICE, TILE
from dsv4_kernels.registry import Arguments
from dsv4_kernels.testing.compare import clone
from dsv4_kernels.testing.inputs import Inputs

sys.path.insert(0, str(Path(__file__).parent))

from gluon_values import Places, Shared, Values, functions, language, load, mma_v2, store

FOLDER = Path(mhc_pre_post.__file__).parent
TOKENS = 13


def _put(places: Places, a: Values, b: Values, c: Values, tag: Any) -> None:
    for at, value in enumerate((a, b, c)):
        store(places + at, value.to(torch.int32, bitcast=True))
    store(places + 3, tag)


def _get(places: Places) -> tuple[Values, ...]:
    return (*(load(places + at).to(torch.float32, bitcast=True) for at in range(3)), load(places + 3))


class Group:
    """The programs of a group, one tile."""

    def __init__(self, slices: int, arguments: Arguments) -> None:
        self.slices, self.arguments, self.at = slices, arguments, 0
        nothing = SimpleNamespace(wait=lambda *_: None, arrive=lambda *_, **__: None)
        names = {
            "gl": language(lambda: self.at, slices), "mma_v2": mma_v2, "mbarrier": nothing, "tma": None,
            "fence_async_shared": lambda: None, "_put": _put, "_get": _get, "_patient": lambda *_: None,
            "_insisted": lambda places, tag, *held: held,
            "_inverse": lambda value: Values(1.0 / value.held), "_rounded": lambda value: value.to(torch.bfloat16),
        }  # fmt: skip
        files = ("_once_parts.py", "_once_mixes.py", "_once_spread.py", "_once.py")
        self.roles = functions((FOLDER / file for file in files), names)
        memory = torch.zeros(HEAD + slices * RECORD, dtype=torch.int32)
        memory[0] = 4  # launches before
        self.records = Places(memory) + HEAD
        self.parts = (*(Shared(torch.zeros(8, TILE, 8)) for _ in range(3)), Shared(torch.zeros(TILE, 8)), None)
        self.bars = Shared(torch.zeros(1))

    def padded(self, name: str) -> torch.Tensor:
        """A tile, as it is copied: zeros beyond the last token."""
        tensor = self.arguments[name]
        return torch.cat([tensor, tensor.new_zeros(TILE - TOKENS, *tensor.shape[1:])])

    def rings(self) -> tuple[Shared, ...]:
        """The streams of this program's slice, and with a spread what is spread over them and how: one stage."""
        own = slice(self.at * SLICE, (self.at + 1) * SLICE)
        streams = self.padded("x")[:, :, own]
        rings = [streams[:, stream].contiguous().view(1, 1, TILE, SLICE) for stream in range(4)]
        if "y" in self.arguments:
            y, post, comb = (self.padded(name) for name in ("y", "post", "comb"))
            rings += [y[:, own].contiguous()[None], post[None], comb.view(1, TILE, 16)]
        return tuple(Shared(ring) for ring in rings)

    def products(self) -> tuple[Shared, ...]:
        """Publish the record of this program; the rings then."""
        rings, fn = self.rings(), Places(self.arguments["fn"].flatten())
        if "y" in self.arguments:
            self.roles["_spread"](fn, 1, rings, self.bars, self.bars, self.parts, None, self.slices, 1)
        else:
            self.roles["_products"](fn, 1, rings, self.bars, self.bars, self.parts, None, self.slices, 1)
        self.roles["_publisher"](self.records, 1, self.parts, None, self.bars, None, self.slices, 1)
        return rings

    def given(self) -> tuple[Any, ...]:
        """Of the roles that add records up."""
        return self.records, Places(self.arguments["base"]), Places(self.arguments["scale"])

    def collapse(self, rings: tuple[Shared, ...]) -> None:
        """This program's columns of ``out``."""
        weights, eps = Shared(torch.zeros(4, TILE)), (self.arguments["rms_eps"], self.arguments["hc_eps"])
        reduced = (*self.given(), 1, self.slices, eps, weights, self.bars, self.bars, None)
        self.roles["_reducer"](0, reduced, 8, self.slices, 1)
        out = Places(self.arguments["out"].view(-1))
        streams = [self.roles["_pairs"](ring, 0) for ring in rings[:4]]
        self.roles["_store_collapsed"](*streams, weights, 0, out, TOKENS, 0, self.slices * SLICE, self.slices)

    def mixes(self, post: str, comb: str, hurried: bool) -> None:
        """Of the whole tile, by the program whose turn it is."""
        to = tuple(Places(self.arguments[name].view(-1)) for name in (post, comb))
        eps = (self.arguments["rms_eps"], self.arguments["hc_eps"])
        mixed = (*self.given(), to, TOKENS, 1, self.slices, eps)
        iters = self.arguments["iters"]
        if hurried:
            self.roles["_gather_last"](mixed, 0, self.parts, None, 1, self.slices)
            self.roles["_mixes"](mixed, None, self.parts, None, 2, self.slices, iters)
        else:
            sums = self.roles["_gathered"](mixed, self.roles["_number"](self.records), 0, 2, self.slices)
            self.roles["_finish"](*sums, mixed, 0, self.slices, iters)


@pytest.mark.parametrize("hurried", [False, True])
@pytest.mark.parametrize("slices", [4, 6])
@pytest.mark.parametrize("spread", [False, True])
def test_a_group_gives_what_the_reference_gives(spread: bool, slices: int, hurried: bool) -> None:
    inputs = Inputs("cpu", slices)
    build, reference = (
        (_post_pre, mhc_pre_post.mhc_post_pre_reference) if spread else (_pre, mhc_pre_post.mhc_pre_reference)
    )
    arguments = build(inputs, TOKENS, slices * SLICE)
    wanted = clone(arguments)
    reference(**wanted)
    group = Group(slices, arguments)
    rings = []
    for group.at in range(slices):
        rings.append(group.products())
    for group.at in range(slices):
        group.collapse(rings[group.at])
    group.at = 0
    post, comb = ("new_post", "new_comb") if spread else ("post", "comb")
    group.mixes(post, comb, hurried)
    streams = torch.cat([torch.stack([ring.held[0, 0] for ring in of[:4]], 1) for of in rings], 2)[:TOKENS]
    for name, got in {**{n: arguments[n] for n in ("out", post, comb)}, "x": streams}.items():
        off = (got.double() - wanted[name].double()).norm() / wanted[name].double().norm()
        assert off < (2.0**-12 if got.dtype is torch.bfloat16 else 2.0**-16), (name, float(off))


@pytest.mark.parametrize(("tiles", "events"), [(40, 8), (7, 2), (8, 4)])
def test_of_the_first_tiles_two_are_on_their_way_at_once(tiles: int, events: int) -> None:
    did: list[object] = []
    full = SimpleNamespace(index=lambda stage: ("full", stage))
    names = {
        "gl": language(lambda: 0, 1), "mbarrier": SimpleNamespace(wait=lambda bar, _: did.append(bar)),
        "_load": lambda _descs, _rings, tile, _col, stage, *_: did.append((tile, stage)),
    }  # fmt: skip
    roles = functions((FOLDER / file for file in ("_once_parts.py", "_once.py")), names)
    roles["_fill"](None, None, 1, 3, tiles, 0, full, False, 5)
    order = [(1, 0), (4, 1), ("full", 0), (7, 2), ("full", 1), (10, 3), ("full", 2), (13, 4)]
    assert did == order[:events]
