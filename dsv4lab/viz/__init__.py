"""Pictures: pure functions from records to plotly figures, loaded when first used. Never imports torch."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dsv4lab.viz.acceptance import acceptance_figure
    from dsv4lab.viz.page_layout import page_layout_figure
    from dsv4lab.viz.predicted import Predicted, predicted_figure
    from dsv4lab.viz.queue_occupancy import queue_occupancy_figure
    from dsv4lab.viz.queue_sweep import queue_sweep_figure
    from dsv4lab.viz.sensitivity import sensitivity_figure
    from dsv4lab.viz.stream_busy import stream_busy_figure
    from dsv4lab.viz.timeline_view import timeline_figure
    from dsv4lab.viz.tpot_ribbon import tpot_ribbon_figure
    from dsv4lab.viz.tuning import delta_bars, tpot_heatmap, tradeoff_scatter
    from dsv4lab.viz.tuning_lines import parallel_figure

__all__ = [
    "Predicted",
    "acceptance_figure",
    "delta_bars",
    "page_layout_figure",
    "parallel_figure",
    "predicted_figure",
    "queue_occupancy_figure",
    "queue_sweep_figure",
    "sensitivity_figure",
    "stream_busy_figure",
    "timeline_figure",
    "tpot_heatmap",
    "tpot_ribbon_figure",
    "tradeoff_scatter",
]

_HOMES = {
    "Predicted": "predicted",
    "acceptance_figure": "acceptance",
    "delta_bars": "tuning",
    "page_layout_figure": "page_layout",
    "parallel_figure": "tuning_lines",
    "predicted_figure": "predicted",
    "queue_occupancy_figure": "queue_occupancy",
    "queue_sweep_figure": "queue_sweep",
    "sensitivity_figure": "sensitivity",
    "stream_busy_figure": "stream_busy",
    "timeline_figure": "timeline_view",
    "tpot_heatmap": "tuning",
    "tpot_ribbon_figure": "tpot_ribbon",
    "tradeoff_scatter": "tuning",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
