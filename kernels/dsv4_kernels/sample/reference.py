"""Choice of the next token in plain torch (dsv4-spec 7.2): counter-based, so that neither batch nor rank matters."""

from __future__ import annotations

import torch

from dsv4_kernels.philox import uniform

MASS_ONE = 2.0**32
"""Weight of the best token in the integers in which top-p is reckoned: their sum does not depend on its order."""


def sample_reference(
    logits: torch.Tensor,
    temperature: torch.Tensor,
    top_k: torch.Tensor | None,
    top_p: torch.Tensor | None,
    seed: torch.Tensor,
    index: torch.Tensor,
    out: torch.Tensor,
) -> None:
    """One token of each row of ``logits [T, V]`` into ``out`` int64 ``[T]``.

    ``temperature`` float32 ``[T]``: 0 is greedy (ties: lowest token). Else the token with the largest
    ``logit / temperature + Gumbel noise``, the noise a function of ``(seed[t], index[t], token)`` (int64 ``[T]``).
    ``top_k`` int32 ``[T]`` (0: all) keeps the tokens that are not below the k-th largest logit; ``top_p`` float32
    ``[T]`` then keeps those that are not below the last one needed for this share of the kept weight. Tokens that tie
    with the last one kept are kept. ``None`` for either means that no row uses it.
    A row with a NaN or +inf, or with nothing but -inf, gives -1.
    """
    values = logits.float()
    greedy = temperature == 0
    divisor = torch.where(greedy, 1.0, temperature.float()).unsqueeze(1)
    floor = _floor(values, divisor, top_k, top_p)
    token = torch.arange(logits.shape[1], device=logits.device)
    u = uniform(seed.unsqueeze(1), token.unsqueeze(0), index.unsqueeze(1), torch.zeros_like(token).unsqueeze(0))
    noisy = values / divisor - torch.log(-torch.log(u))
    ranked = torch.where(greedy.unsqueeze(1), values, torch.where(values >= floor, noisy, float("-inf")))
    bad = (values.isnan() | (values == float("inf"))).any(1) | (values == float("-inf")).all(1)
    out.copy_(torch.where(bad, -1, ranked.argmax(1)))


def _floor(
    values: torch.Tensor, divisor: torch.Tensor, top_k: torch.Tensor | None, top_p: torch.Tensor | None
) -> torch.Tensor:
    """The least logit of each row that may be drawn, ``[T, 1]``."""
    ordered = values.sort(1, descending=True).values
    size = values.shape[1]
    floor = ordered[:, -1:]
    if top_k is not None:
        k = torch.where(top_k == 0, size, top_k.clamp(max=size)).long()
        floor = ordered.gather(1, (k - 1).unsqueeze(1))
    if top_p is not None:
        weight = (torch.exp((ordered - ordered[:, :1]) / divisor) * MASS_ONE).nan_to_num(0.0).long()
        weight = torch.where(ordered >= floor, weight, 0)
        reached = weight.cumsum(1).double()
        enough = reached >= top_p.double().unsqueeze(1) * reached[:, -1:]
        last = ordered.gather(1, enough.int().argmax(1, keepdim=True))
        floor = torch.maximum(floor, last)
    return floor
