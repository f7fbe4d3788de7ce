"""Live views for notebooks: pictures of ``dsv4lab.viz`` with controls around them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dsv4lab.engine.client import EngineClient
    from dsv4lab.widgets.overlap_lab import OverlapLab


def dashboard(client: EngineClient, **options: Any) -> OverlapLab:
    """The Overlap Lab on ``client``: controls, and pictures that follow the engine while it decodes.

    ``options`` are those of :class:`dsv4lab.widgets.overlap_lab.OverlapLab`. Show it by making it the last expression
    of a cell; ``close()`` ends it and leaves the client as it is.
    """
    from dsv4lab.widgets.overlap_lab import OverlapLab

    return OverlapLab(client, **options)
