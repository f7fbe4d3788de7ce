"""Keeping what the indexer of one layer chose, which the next ratio-4 layer overwrites."""

from __future__ import annotations

import weakref

import torch

from dsv4lab.overlap.arena import Arena, Lane
from dsv4lab.overlap.compile import CompiledProgram
from dsv4lab.overlap.ops import OpFunction

BUFFER = "indexer.topk"
KEPT = "indexer.kept"


class SelectionTap:
    """Copies the chosen entries of ``layer`` aside while a program runs, inside the op that chose them.

    The copy lies in the arena, so a program that was captured with it keeps it up to date.
    """

    def __init__(self, layer: int, arena: Arena) -> None:
        self.layer = layer
        self._arena = arena
        self._chose = False
        self._tapped: weakref.WeakKeyDictionary[CompiledProgram, tuple[CompiledProgram, bool]]
        self._tapped = weakref.WeakKeyDictionary()

    def into(self, compiled: CompiledProgram) -> CompiledProgram:
        """``compiled`` with the copy; the same program, so the same streams, waits and times."""
        found = self._tapped.get(compiled)
        if found is None:
            tokens = compiled.program.tokens
            chooses = [op.layer == self.layer and BUFFER in op.writes for op in compiled.program.ops]
            run = tuple(
                self._copying(function, tokens) if here else function
                for here, function in zip(chooses, compiled.run, strict=True)
            )
            found = self._tapped[compiled] = CompiledProgram(compiled.program, run), any(chooses)
        tapped, self._chose = found
        return tapped

    def take(self, tokens: int) -> torch.Tensor | None:
        """int32 ``[tokens, topk]`` of the last run, a copy on the CPU, -1 where fewer were visible; None if nothing was
        chosen in it.
        """
        if not self._chose:
            return None
        self._chose = False
        return self._arena.buffers[KEPT][:tokens].to("cpu", copy=True)

    def _copying(self, function: OpFunction, tokens: int) -> OpFunction:
        chosen = self._arena.buffers[BUFFER][:tokens]
        kept = self._arena.view(KEPT, tokens, tuple(chosen.shape[1:]), chosen.dtype)

        def run(lane: Lane) -> None:
            function(lane)
            kept.copy_(chosen)

        return run
