"""Random weights that behave: deterministic, order-independent, and with nothing degenerate in them."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping

import numpy as np
import torch

from dsv4lab.checkpoint.names import Role, TensorSpec, expected_tensors
from dsv4lab.checkpoint.write import write_checkpoint
from dsv4lab.config.model import ModelConfig
from dsv4lab.parallel.sharding import Sharding

__all__ = ["random_tensor", "random_tensors", "random_weights", "write_checkpoint"]

# (mean, standard deviation); None stands for 1/sqrt(fan in), so that a normed input gives an output of order one.
_SCALES: dict[Role, tuple[float, float | None]] = {
    Role.EMBEDDING: (0.0, 1.0),
    Role.LINEAR: (0.0, None),
    Role.HEAD: (0.0, None),
    Role.NORM: (1.0, 0.1),
    Role.HC_FN: (0.0, None),
    Role.HC_BASE: (0.0, 0.5),
    Role.HC_SCALE: (1.0, 0.2),
    Role.APE: (0.0, 0.5),
    Role.SINK: (0.0, 1.0),
    Role.ROUTER_BIAS: (0.0, 0.1),
}
_HEAD_GAIN = 2.0  # spreads the logits, so that greedy choices are not near-ties


def random_weights(
    config: ModelConfig, seed: int, dtype: torch.dtype = torch.float32, sharding: Sharding | None = None
) -> dict[str, torch.Tensor]:
    """Synthetic weights of ``config`` under canonical names, in the dtypes that ``load_weights`` gives.

    Each tensor depends on ``seed`` and its own name alone: the same bits on every machine, whatever the order, layer
    count or dtype asked for (rounding to ``dtype`` aside). With ``sharding``, the parts of its rank.
    """
    return random_tensors(expected_tensors(config), config, seed, dtype, sharding)


def random_tensors(
    tensors: Mapping[str, TensorSpec], config: ModelConfig, seed: int, dtype: torch.dtype, sharding: Sharding | None
) -> dict[str, torch.Tensor]:
    """Each of ``tensors``, or a rank's parts; a tensor of which a part is held is made whole, and let go again."""
    held = [name for name in tensors if sharding is None or sharding.holds(name)]
    return {name: _held(random_tensor(name, tensors[name], config, seed, dtype), name, sharding) for name in held}


def _held(tensor: torch.Tensor, name: str, sharding: Sharding | None) -> torch.Tensor:
    part = None if sharding is None else sharding.part(name, tuple(tensor.shape))
    return tensor if part is None else tensor.narrow(part.axis, part.start, part.stop - part.start).clone()


def random_tensor(name: str, spec: TensorSpec, config: ModelConfig, seed: int, dtype: torch.dtype) -> torch.Tensor:
    """One tensor of :func:`random_weights`."""
    rng = _generator(name, seed)
    if spec.role is Role.HASH_TABLE:
        return torch.from_numpy(_distinct_rows(rng, spec.shape, config.n_routed_experts))
    mean, deviation = mean_and_deviation(spec)
    # Uniform rather than normal: exact across platforms, several times faster, and as good in sums of many.
    values = rng.random(spec.shape, dtype=np.float32)
    values -= np.float32(0.5)
    values *= np.float32(deviation * math.sqrt(12.0))
    if mean:
        values += np.float32(mean)
    tensor = torch.from_numpy(values)
    return tensor.to(dtype) if spec.role.follows_model_dtype else tensor


def mean_and_deviation(spec: TensorSpec) -> tuple[float, float]:
    """Mean and standard deviation of a synthetic tensor of this role and shape."""
    mean, deviation = _SCALES[spec.role]
    if deviation is None:
        deviation = float(spec.shape[-1] ** -0.5) * (_HEAD_GAIN if spec.role is Role.HEAD else 1.0)
    return mean, deviation


def _generator(name: str, seed: int) -> np.random.Generator:
    digest = hashlib.blake2b(f"{seed}:{name}".encode(), digest_size=16).digest()
    return np.random.Generator(np.random.SFC64(int.from_bytes(digest, "little")))


def _distinct_rows(rng: np.random.Generator, shape: tuple[int, ...], experts: int) -> np.ndarray:
    """int64 ``[vocab, k]``: k different experts per token, in random order."""
    vocab, chosen = shape
    order = np.argsort(rng.random((vocab, experts), dtype=np.float32), axis=1, kind="stable")
    return np.ascontiguousarray(order[:, :chosen], dtype=np.int64)
