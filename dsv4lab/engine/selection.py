"""Keeping what the indexer of one layer chose, which the next ratio-4 layer overwrites."""

from __future__ import annotations

import weakref

import torch

from dsv4lab.overlap.arena import Arena, Lane
from dsv4lab.overlap.compile import CompiledProgram
from dsv4lab.overlap.ops import OpFunction

BUFFER = "indexer.topk"


class SelectionTap:
    """Copies the chosen entries of ``layer`` aside while a program runs, inside the op that chose them."""

    def __init__(self, layer: int, arena: Arena) -> None:
        self.layer = layer
        self._arena = arena
        self._kept: torch.Tensor | None = None
        self._tapped: weakref.WeakKeyDictionary[CompiledProgram, CompiledProgram] = weakref.WeakKeyDictionary()

    def into(self, compiled: CompiledProgram) -> CompiledProgram:
        """``compiled`` with the copy; the same program, so the same streams, waits and times."""
        tapped = self._tapped.get(compiled)
        if tapped is None:
            tokens = compiled.program.tokens
            run = tuple(
                self._copying(function, tokens) if op.layer == self.layer and BUFFER in op.writes else function
                for op, function in zip(compiled.program.ops, compiled.run, strict=True)
            )
            tapped = self._tapped[compiled] = CompiledProgram(compiled.program, run)
        return tapped

    def take(self) -> torch.Tensor | None:
        """int32 ``[tokens, topk]`` of the last run, -1 where fewer were visible; None if nothing was chosen in it."""
        kept, self._kept = self._kept, None
        return kept

    def _copying(self, function: OpFunction, tokens: int) -> OpFunction:
        def run(lane: Lane) -> None:
            function(lane)
            self._kept = self._arena.buffers[BUFFER][:tokens].clone()

        return run
