"""Values of matched tensors, whole or a rank's part of them, decoded or as stored."""

from __future__ import annotations

import torch

from dsv4lab.checkpoint.decode import block_size, decode_fp4, decode_fp8
from dsv4lab.checkpoint.match import FP4, FP8, Source
from dsv4lab.checkpoint.shards import Shards, Span, StoredTensor
from dsv4lab.checkpoint.stored import StoredWeight
from dsv4lab.errors import CheckpointError
from dsv4lab.parallel.sharding import Part


class Reader:
    """Reads sources from the files of ``shards``."""

    def __init__(self, shards: Shards) -> None:
        self._shards = shards

    def values(self, source: Source, part: Part | None = None) -> torch.Tensor:
        """The source's values in the shape that the model wants, decoded, in whatever float type they are in."""
        if source.expert is not None:
            return self._packed(source, part)
        if source.scale is None:
            return self._plain(source.stored, part)
        label = f"{source.scale.file}: {source.scale.name}"
        wide = None if part is None else _aligned(part, self._block(source, part.axis), source.shape[part.axis])
        codes, scale = self._quantised(source, wide)
        if source.stored.dtype in FP8:
            decoded = decode_fp8(codes, scale, label)
        else:
            assert source.stored.dtype in FP4
            decoded = decode_fp4(codes, scale, label)
        if part is None or wide is None or part == wide:
            return decoded
        return decoded.narrow(part.axis, part.start - wide.start, part.stop - part.start).clone()

    def stored(self, source: Source, part: Part | None = None) -> StoredWeight:
        """The source as it is stored. Raises :class:`CheckpointError` if the part cuts a block of scales."""
        if source.expert is not None or source.scale is None:
            return StoredWeight(self.values(source, part))
        if part is not None:
            block, length = self._block(source, part.axis), source.shape[part.axis]
            if part != _aligned(part, block, length):
                raise CheckpointError(
                    f"{source.stored.file}: {source.stored.name}: {part.start} to {part.stop} of dimension {part.axis} "
                    f"cuts a block of {block} that share a scale: split {length} over at most {length // block} ranks"
                )
        return StoredWeight(*self._quantised(source, part))

    def _packed(self, source: Source, part: Part | None) -> torch.Tensor:
        assert source.expert is not None
        first, last = source.rows
        columns = None
        if part is not None and part.axis == 0:
            first, last = first + part.start, first + part.stop
        elif part is not None:
            columns = (part.start, part.stop)
        offset = source.expert * source.stored.shape[1]
        return self._shards.read(source.stored, (offset + first, offset + last), columns)

    def _plain(self, stored: StoredTensor, part: Part | None) -> torch.Tensor:
        if part is None:
            return self._shards.read(stored)
        span = (part.start, part.stop)
        return self._shards.read(stored, span) if part.axis == 0 else self._shards.read(stored, columns=span)

    def _quantised(self, source: Source, part: Part | None) -> tuple[torch.Tensor, torch.Tensor]:
        """Codes and scales of a part that keeps to blocks."""
        assert source.scale is not None
        if part is None:
            return self._shards.read(source.stored), self._shards.read(source.scale)
        block = self._block(source, part.axis)
        blocks: Span = (part.start // block, -(-part.stop // block))
        span: Span = (part.start, part.stop)
        if part.axis == 0:
            return self._shards.read(source.stored, span), self._shards.read(source.scale, blocks)
        if source.stored.dtype in FP4:
            span = (part.start // 2, part.stop // 2)
        return self._shards.read(source.stored, columns=span), self._shards.read(source.scale, columns=blocks)

    def _block(self, source: Source, axis: int) -> int:
        """Values of dimension ``axis`` that share a scale."""
        assert source.scale is not None
        label = f"{source.scale.file}: {source.scale.name}"
        return block_size(source.shape[axis], source.scale.shape[axis], label)


def _aligned(part: Part, block: int, length: int) -> Part:
    """The smallest part of whole blocks around ``part``."""
    return Part(part.axis, part.start // block * block, min(-(-part.stop // block) * block, length))
