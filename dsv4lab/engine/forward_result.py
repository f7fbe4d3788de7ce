"""What one forward gave: logits where they were computed, brought to the host only when somebody reads them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import torch

from dsv4lab.engine.choice import Likeliest
from dsv4lab.overlap.run_record import RunRecord


@dataclass(frozen=True, eq=False)
class ForwardResult:
    """``rows`` float32 ``[outputs, vocab]``, a copy on the device of the forward, and what the replay took."""

    rows: torch.Tensor
    record: RunRecord
    selection: torch.Tensor | None = None
    """int32 ``[tokens, topk]``: entries that the watched indexer chose; see :meth:`Runner.watch_selection`."""
    others: Mapping[int, RunRecord] = field(default_factory=dict)
    """The same forward on other ranks of the attention group."""
    on_gpu: bool = False

    @cached_property
    def logits(self) -> torch.Tensor:
        """``rows`` on the CPU."""
        return self.rows.cpu()

    @cached_property
    def likeliest(self) -> Likeliest | None:
        """The largest of each row, found on a GPU: half a megabyte a row stays there. None on the CPU."""
        return likeliest_of(self.rows) if self.on_gpu else None


def likeliest_of(rows: torch.Tensor) -> Likeliest:
    """Of ``rows`` float32 ``[n, vocab]``, in one copy to the host: the lowest id wins a tie, and NaN is the largest."""
    tokens = rows.argmax(dim=1)
    logits = rows.gather(1, tokens[:, None])[:, 0]
    both = torch.stack((tokens.float(), logits)).cpu().numpy()  # float32 holds every token id below 2^24
    return Likeliest(both[0].astype("int64"), both[1])
