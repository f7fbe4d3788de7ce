"""Greedy choices from the largest of each row are those from the rows; what needs a row says so."""

from __future__ import annotations

import pytest
import torch

from dsv4lab.engine.choice import Chooser
from dsv4lab.engine.forward_result import likeliest_of
from dsv4lab.engine.request import RequestSpec
from dsv4lab.engine.sampling_params import SamplingParams
from dsv4lab.engine.step import Chunk
from dsv4lab.errors import EngineError
from dsv4lab.kv.allocator import Lease

VOCAB = 1000


def chunk(number: int, sampling: SamplingParams, *, samples: bool = True, fingerprints: bool = False) -> Chunk:
    spec = RequestSpec(number, (1, 2, 3), 8, sampling, fingerprints=fingerprints)
    return Chunk(spec, Lease(number, number, (number,), 4), 3, (5,), samples, 1)


class OnGpu:
    """A forward's result whose rows may be read only if the test says so."""

    selection, record, others = None, None, {}

    def __init__(self, rows: torch.Tensor, *, readable: bool = False) -> None:
        self.likeliest = likeliest_of(rows)
        self.read = False
        self._rows, self._readable = rows, readable

    @property
    def logits(self) -> torch.Tensor:
        assert self._readable, "these rows have to stay on the GPU"
        self.read = True
        return self._rows


def chooser() -> Chooser:
    return Chooser(lambda request_id: (1, 2, 3, 5))


def test_the_largest_of_each_row_is_what_the_rows_say() -> None:
    rows = torch.randn(5, VOCAB, generator=torch.Generator().manual_seed(0))
    rows[1, [7, 900]] = 50.0  # a tie
    rows[2, 0] = rows[3, VOCAB - 1] = 40.0
    chunks = [chunk(n, SamplingParams(), samples=n != 4) for n in range(1, 6)]
    expected = chooser().choose(chunks, rows.numpy())
    assert chooser().next(chunks, OnGpu(rows)) == expected
    assert chooser().next(chunks[2:], OnGpu(rows), 2) == expected[2:]
    assert expected[1] == 7
    assert expected[3] is None


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_row_that_is_not_finite_is_an_error(value: float) -> None:
    rows = torch.zeros(2, VOCAB)
    rows[1, 3] = value
    with pytest.raises(EngineError, match="not finite"):
        chooser().next([chunk(1, SamplingParams()), chunk(2, SamplingParams())], OnGpu(rows))


@pytest.mark.parametrize(
    "needy",
    [
        chunk(2, SamplingParams(temperature=0.5)),
        chunk(2, SamplingParams(repetition_penalty=1.1)),
        chunk(2, SamplingParams(logprobs=0)),
        chunk(2, SamplingParams(), fingerprints=True),
    ],
)
def test_what_needs_more_of_its_row_is_not_chosen_without_it(needy: Chunk) -> None:
    rows = torch.randn(3, VOCAB, generator=torch.Generator().manual_seed(1))
    chunks, result = [chunk(1, SamplingParams()), needy], OnGpu(rows, readable=True)
    assert chooser().next(chunks, result, 1) == chooser().choose(chunks, rows[1:].numpy())
    assert result.read
    plain = OnGpu(rows)
    assert chooser().next(chunks[:1], plain) == [int(rows[0].argmax())]


def test_rows_are_read_only_for_a_request_that_wants_them() -> None:
    rows = torch.randn(2, VOCAB, generator=torch.Generator().manual_seed(2))
    chooser().note_rows(chunk(1, SamplingParams()), OnGpu(rows), 0, (4,))
    noting, wanting = chooser(), chunk(2, SamplingParams(logprobs=1))
    noting.note_rows(wanting, OnGpu(rows, readable=True), 1, (4,))
    ((place, found),) = noting.take_logprobs([2])
    expected = torch.log_softmax(rows[1].double(), 0)[4]
    assert place == 0
    assert found.logprob == pytest.approx(float(expected), abs=1e-5)
