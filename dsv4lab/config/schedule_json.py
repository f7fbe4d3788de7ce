"""Layer schedules of a ``config.json``: attention kinds and routers, old and new spelling (dsv4-spec 1.3)."""

from __future__ import annotations

from dsv4lab.config import checks
from dsv4lab.config.fields import Fields

RATIOS = {"sliding_attention": 0, "compressed_sparse_attention": 4, "heavily_compressed_attention": 128}
LAYER_TYPES = {ratio: name for name, ratio in RATIOS.items()}
HASH, SCORE = "hash_moe", "moe"


def read_ratios(config: Fields, layers: int) -> tuple[int, ...]:
    """Compression ratio of each main layer, from ``layer_types`` or ``compress_ratios``.

    A file with neither is refused: the guess that transformers makes is not the schedule of any released model.
    """
    _check_rates(config)
    by_type = _from_layer_types(config, layers) if config.has("layer_types") else None
    by_ratio = _from_compress_ratios(config, layers) if config.has("compress_ratios") else None
    if by_type is not None and by_ratio is not None and by_type != by_ratio:
        raise config.error("compress_ratios", "the ratios that layer_types names")
    ratios = by_type if by_type is not None else by_ratio
    if ratios is None:
        raise config.missing("layer_types", f"it or compress_ratios, with an entry for each of {layers} layers")
    return ratios


def read_hash_layers(config: Fields, layers: int) -> int:
    """Number of leading hash-routed layers, from ``mlp_layer_types`` or ``num_hash_layers``."""
    by_type = _hash_prefix(config, layers) if config.has("mlp_layer_types") else None
    count = config.integer("num_hash_layers", 0, layers) if config.has("num_hash_layers") else None
    if by_type is not None and count is not None and by_type != count:
        raise config.error("num_hash_layers", f"{by_type}, the {HASH} layers that mlp_layer_types names")
    result = by_type if by_type is not None else count
    if result is None:
        raise config.missing("mlp_layer_types", f"it or num_hash_layers (how many of {layers} layers route by hash)")
    return result


def _from_layer_types(config: Fields, layers: int) -> tuple[int, ...]:
    names = config.strings("layer_types", RATIOS)
    if len(names) != layers:
        raise config.error("layer_types", f"num_hidden_layers = {layers} entries, not {len(names)}")
    return tuple(RATIOS[name] for name in names)


def _from_compress_ratios(config: Fields, layers: int) -> tuple[int, ...]:
    """The list may go on after the main layers, with a 0 for each draft layer."""
    ratios = config.integers("compress_ratios")
    if len(ratios) < layers:
        raise config.error("compress_ratios", f"at least num_hidden_layers = {layers} entries, not {len(ratios)}")
    for layer, ratio in enumerate(ratios):
        allowed = tuple(LAYER_TYPES) if layer < layers else (0,)
        if ratio not in allowed:
            what = "" if layer < layers else " (draft layers, after the main ones, have no compressor)"
            where = config.full(f"compress_ratios[{layer}]")
            raise checks.mismatch(config.source, where, ratio, f"{checks.one_of(allowed)}{what}")
    return ratios[:layers]


def _check_rates(config: Fields) -> None:
    why = "other compression rates are not supported"
    if config.has("compress_rates"):
        rates = config.child("compress_rates")
        for name in ("compressed_sparse_attention", "heavily_compressed_attention"):
            rates.same(name, RATIOS[name], why)
    config.same("compress_rate_csa", 4, why)
    config.same("compress_rate_hca", 128, why)


def _hash_prefix(config: Fields, layers: int) -> int:
    names = config.strings("mlp_layer_types", (HASH, SCORE))
    if len(names) != layers:
        raise config.error("mlp_layer_types", f"num_hidden_layers = {layers} entries, not {len(names)}")
    count = names.count(HASH)
    if HASH in names[count:]:
        raise config.error("mlp_layer_types", f"every {HASH} before the first {SCORE}")
    return count
