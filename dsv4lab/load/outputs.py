"""What a server answers greedily, and whether two servers answer the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import aiohttp
import msgspec

from dsv4lab.errors import EngineError, TimeoutExceededError
from dsv4lab.load.client import Endpoint, open_session
from dsv4lab.load.spec import Prompt


@dataclass(frozen=True, slots=True)
class Output:
    """A greedy answer. ``tokens`` are ids where the server tells them, else their texts; ``logprobs`` are theirs."""

    text: str
    tokens: tuple[int | str, ...]
    logprobs: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Comparison:
    """Of the outputs of two arms. ``divergence`` is the first: prompt, place, and the token of each (None: it ended).

    ``largest_logprob_gap`` is over the tokens before the first difference of each prompt; None if there are none.
    """

    identical: bool
    prompts: int
    differing: int
    divergence: tuple[int, int, int | str | None, int | str | None] | None
    largest_logprob_gap: float | None


async def greedy_outputs(endpoint: Endpoint, prompts: Sequence[Prompt], max_new_tokens: int) -> list[Output]:
    """One answer after the other, so that no batch changes the rounding.

    Raises :class:`TimeoutExceededError` for silence and :class:`EngineError` for everything else.
    """
    url = f"{endpoint.url.rstrip('/')}/v1/completions"
    outputs = []
    async with open_session(endpoint) as session:
        for prompt in prompts:
            body = {
                "model": endpoint.model,
                "prompt": prompt,
                "max_tokens": max_new_tokens,
                "temperature": 0.0,
                "logprobs": 1,
                "return_token_ids": True,
                **endpoint.body,
            }
            try:
                async with session.post(url, json=body, headers=endpoint.headers) as response:
                    answer = await response.read()
                    if response.status != 200:
                        raise EngineError(f"status {response.status}: {answer[:300].decode(errors='replace')}")
            except TimeoutError:
                raise TimeoutExceededError(f"nothing came for {endpoint.silence_s:g} s") from None
            except (aiohttp.ClientError, OSError) as error:
                raise EngineError(f"no answer: {str(error) or type(error).__name__}") from None
            outputs.append(_output(answer))
    return outputs


def compare(first: Sequence[Output], second: Sequence[Output]) -> Comparison:
    """Compare answers to the same prompts, token by token. Raises ``ValueError`` for different numbers of them."""
    divergence, differing, gaps = None, 0, []
    for prompt, (a, b) in enumerate(zip(first, second, strict=True)):
        same = next((at for at, (x, y) in enumerate(zip(a.tokens, b.tokens, strict=False)) if x != y), None)
        if same is None and len(a.tokens) != len(b.tokens):
            same = min(len(a.tokens), len(b.tokens))
        gaps += [abs(x - y) for x, y in zip(a.logprobs[:same], b.logprobs[:same], strict=False)]
        if same is not None or a.text != b.text:
            differing += 1
        if same is not None and divergence is None:
            divergence = (prompt, same, _at(a, same), _at(b, same))
    return Comparison(differing == 0, len(first), differing, divergence, max(gaps, default=None))


def _at(output: Output, place: int) -> int | str | None:
    return output.tokens[place] if place < len(output.tokens) else None


def _output(answer: bytes) -> Output:
    try:
        choice = msgspec.json.decode(answer)["choices"][0]
        logprobs = choice.get("logprobs") or {}
        tokens = choice.get("token_ids") or logprobs.get("tokens") or ()
        return Output(choice["text"], tuple(tokens), tuple(map(float, logprobs.get("token_logprobs") or ())))
    except (msgspec.MsgspecError, ValueError, KeyError, TypeError, AttributeError, IndexError):
        raise EngineError(f"an answer is no completion: {answer[:100].decode(errors='replace')}") from None
