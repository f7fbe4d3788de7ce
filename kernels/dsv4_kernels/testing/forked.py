"""Run a function over items in forked children: for work that holds the interpreter's lock, such as compiling."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import TypeVar

In = TypeVar("In")
Out = TypeVar("Out")


def forked_map(call: Callable[[In], Out], items: Sequence[In], processes: int) -> list[Out]:
    """``[call(item) for item in items]`` by ``processes`` children, each taking every ``processes``-th item.

    Items need not be picklable (the children inherit them), results do. A child that dies raises RuntimeError.
    """
    context = multiprocessing.get_context("fork")
    children = []
    for at in range(min(processes, len(items))):
        receive, send = context.Pipe(duplex=False)
        child = context.Process(target=_work, args=(call, items[at::processes], send))
        child.start()
        send.close()
        children.append((child, receive))
    results: dict[int, Out] = {}
    for at, (child, receive) in enumerate(children):
        try:
            for place in range(at, len(items), processes):
                results[place] = receive.recv()
        except EOFError:
            child.join()
            raise RuntimeError(f"a child of the compile check died with exit code {child.exitcode}") from None
        child.join()
    return [results[place] for place in range(len(items))]


def _work(call: Callable[[In], Out], items: Sequence[In], send: Connection) -> None:
    for item in items:
        send.send(call(item))
    send.close()
