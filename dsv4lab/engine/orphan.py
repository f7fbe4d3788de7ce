"""A process that must not outlive the one that started it."""

from __future__ import annotations

import os
import threading

from dsv4lab.engine.wire import Channel

EXIT_GRACE_S = 5.0
PARENT_POLL_S = 1.0


def end_with_parent(channel: Channel, done: threading.Event) -> None:
    """End ``channel`` once the parent is gone, unless ``done`` comes first; a thread of its own watches.

    A fork of the parent may keep the socket open after the parent itself is gone.
    """
    parent = os.getppid()

    def watch() -> None:
        while not done.wait(PARENT_POLL_S):
            if os.getppid() != parent:
                channel.end()
                return

    threading.Thread(target=watch, daemon=True).start()
