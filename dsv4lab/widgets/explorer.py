"""What the explorers share: questions from the page answered by a session, and the page as one file."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

import anywidget
import traitlets

from dsv4lab.errors import LabError
from dsv4lab.viz import theme as themes
from dsv4lab.widgets import front, wire
from dsv4lab.widgets.base import error_text, write_page
from dsv4lab.widgets.trace_wire import short

_log = logging.getLogger(__name__)


class Explorer(anywidget.AnyWidget):
    """A view that asks for what it shows. Subclasses answer in :meth:`reply` and write themselves in :meth:`page`."""

    theme = traitlets.Unicode("auto").tag(sync=True)
    palettes = traitlets.Dict().tag(sync=True)

    def __init__(self, *, theme: str, **traits: Any) -> None:
        if theme != "auto":
            themes.check_theme(theme)
        super().__init__(theme=theme, palettes=front.palettes(), **traits)
        self.on_msg(self._take)

    def page(self) -> bytes:
        """The view with its data as one HTML page."""
        raise NotImplementedError

    def reply(self, message: dict[str, Any]) -> None:
        """Answer one question of the page."""
        raise NotImplementedError

    def save_html(self, path: str | PathLike[str]) -> Path:
        """Write the explorer as one HTML file that needs neither Python nor a network.

        A trace explorer's holds the slices themselves: 12 to 20 MB a million before compression, about a third of that
        in the file. Raises ``UsageError`` if it cannot be written.
        """
        return write_page(path, self.page())

    def send_page(self, name: str) -> None:
        """Hand :meth:`page` to the browser as a download called ``name``."""
        self.send({"kind": "file", "name": name, "type": "text/html"}, [self.page()])

    def send_content(self, content: Any) -> None:
        """Send plain data with arrays in it."""
        buffers: list[bytes] = []
        self.send(wire.encoded(content, buffers), buffers)

    def _take(self, _widget: object, message: Mapping[str, Any], _buffers: object) -> None:
        try:
            self.reply(dict(message))
        except Exception as error:  # noqa: BLE001 - shown on the page, to the one who asked
            if not isinstance(error, LabError):
                _log.error("a question of %s failed", type(self).__name__, exc_info=error)
            text = short(error_text(error), 500)
            question = message.get("kind")
            self.send({"kind": "failed", "number": message.get("number"), "question": question, "text": text})
