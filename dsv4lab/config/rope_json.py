"""Rope settings of a ``config.json``, in each of the three spellings in use (dsv4-spec 1.3, 2.6)."""

from __future__ import annotations

from dataclasses import dataclass

from dsv4lab.config.fields import Fields
from dsv4lab.config.model import YarnScaling


@dataclass(frozen=True, slots=True)
class RopeSettings:
    """What the two rope tables need."""

    rope_dim: int
    theta: float
    compress_theta: float
    yarn: YarnScaling | None


def read_rope(config: Fields, head_dim: int) -> RopeSettings:
    """Read ``rope_parameters`` {main, compress} (transformers), or flat, or ``rope_scaling`` (released files)."""
    theta = config.number("rope_theta") if config.has("rope_theta") else None
    compress = config.number("compress_rope_theta") if config.has("compress_rope_theta") else None
    rope_dim = _rope_dim(config, head_dim)
    if not config.has("rope_parameters"):
        yarn = _read_scaling(config.child("rope_scaling")) if config.has("rope_scaling") else None
    else:
        parameters = config.child("rope_parameters")
        if config.has("rope_scaling"):
            raise config.error("rope_scaling", "none beside rope_parameters: the two say the same thing")
        if parameters.has("main") or parameters.has("compress"):
            theta, compress, yarn = _read_tables(parameters, theta, compress, rope_dim, head_dim)
        else:
            yarn = _read_scaling(parameters)
    if theta is None:
        raise config.missing("rope_theta", "a number above 0")
    if compress is None:
        raise config.missing("compress_rope_theta", "a number above 0")
    return RopeSettings(rope_dim, theta, compress, yarn)


def _rope_dim(config: Fields, head_dim: int) -> int:
    """``qk_rope_head_dim``, or ``head_dim * partial_rotary_factor``; both if both are there and agree."""
    expected = f"an even number of dimensions, at most head_dim = {head_dim}"
    dim = config.integer("qk_rope_head_dim", 2, head_dim) if config.has("qk_rope_head_dim") else None
    if dim is not None and dim % 2:
        raise config.error("qk_rope_head_dim", expected)
    if not config.has("partial_rotary_factor"):
        if dim is None:
            raise config.missing("qk_rope_head_dim", expected)
        return dim
    product = config.number("partial_rotary_factor") * head_dim
    if dim is not None and int(product) != dim:
        raise config.error("partial_rotary_factor", f"qk_rope_head_dim / head_dim = {dim}/{head_dim}")
    if not 2 <= product <= head_dim or int(product) % 2:
        raise config.error("partial_rotary_factor", f"a part of head_dim = {head_dim} that is {expected}")
    return int(product)


def _read_tables(
    parameters: Fields, theta: float | None, compress_theta: float | None, rope_dim: int, head_dim: int
) -> tuple[float, float, YarnScaling | None]:
    main, compress = parameters.child("main"), parameters.child("compress")
    _kind(main, ("default",))
    for table, outer, name in ((main, theta, "rope_theta"), (compress, compress_theta, "compress_rope_theta")):
        inner = table.number("rope_theta")
        if outer is not None and inner != outer:
            raise table.error("rope_theta", f"the same as {name} = {outer:g}")
        part = table.number("partial_rotary_factor", default=rope_dim / head_dim)
        if int(part * head_dim) != rope_dim:
            raise table.error("partial_rotary_factor", f"{rope_dim}/{head_dim}, as elsewhere in the file")
    if _kind(compress, ("default", "yarn")) == "default":
        yarn = None
    elif compress.has("attention_factor"):
        yarn = _read_yarn(compress)
    else:
        raise compress.missing(
            "attention_factor", "1.0: the model applies none, and transformers would fill in another value"
        )
    return main.number("rope_theta"), compress.number("rope_theta"), yarn


def _read_scaling(scaling: Fields) -> YarnScaling | None:
    """A flat object; transformers and the released files agree that its attention factor is 1."""
    return None if _kind(scaling, ("default", "yarn")) == "default" else _read_yarn(scaling)


def _read_yarn(yarn: Fields) -> YarnScaling:
    yarn.same("attention_factor", 1.0, "the model applies no attention factor")
    yarn.same("truncate", True, "the correction range is rounded outwards")
    # Both only ever feed the attention factor, which is 1.
    for name in ("mscale", "mscale_all_dim"):
        if yarn.has(name):
            yarn.number(name, above=None)
    return YarnScaling(
        factor=_at_least_one(yarn, "factor"),
        beta_fast=yarn.number("beta_fast", default=32.0),
        beta_slow=_beta_slow(yarn),
        original_max_position=yarn.integer("original_max_position_embeddings"),
    )


def _beta_slow(yarn: Fields) -> float:
    slow, fast = yarn.number("beta_slow", default=1.0), yarn.number("beta_fast", default=32.0)
    if slow >= fast:
        name = "beta_slow" if yarn.has("beta_slow") else "beta_fast"
        raise yarn.error(name, f"beta_slow below beta_fast, not {slow:g} and {fast:g}")
    return slow


def _at_least_one(yarn: Fields, name: str) -> float:
    value = yarn.number(name)
    if value < 1.0:
        raise yarn.error(name, "a number of at least 1")
    return value


def _kind(table: Fields, allowed: tuple[str, ...]) -> str:
    """``rope_type``, or ``type`` in older files."""
    name = "rope_type" if table.has("rope_type") or not table.has("type") else "type"
    return table.choice(name, allowed)
