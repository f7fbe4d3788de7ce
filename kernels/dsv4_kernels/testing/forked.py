"""Run a function over items in forked children: for work that holds the interpreter's lock, such as compiling."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from multiprocessing.context import ForkProcess
from typing import TypeVar

In = TypeVar("In")
Out = TypeVar("Out")


def forked_map(
    call: Callable[[In], Out], items: Sequence[In], processes: int, died: Callable[[In, int], Out]
) -> list[Out]:
    """``[call(item) for item in items]`` by ``processes`` children, each taking every ``processes``-th item.

    Items need not be picklable (the children inherit them), results do. Where a child dies over an item (a compiler
    that aborts, say), the item's result is ``died(item, exit code)``, and another child goes on with the next.
    """
    results: dict[int, Out] = {}
    lanes = [list(range(at, len(items), processes)) for at in range(min(processes, len(items)))]
    children = [_start(call, items, lane) for lane in lanes]
    for lane, (child, receive) in zip(lanes, children, strict=True):
        while lane:
            try:
                results[lane[0]] = receive.recv()
            except EOFError:
                child.join()
                results[lane[0]] = died(items[lane[0]], child.exitcode or 0)
                child, receive = _start(call, items, lane[1:])
            lane.pop(0)
        child.join()
    return [results[place] for place in range(len(items))]


def _start(call: Callable[[In], Out], items: Sequence[In], places: Sequence[int]) -> tuple[ForkProcess, Connection]:
    context = multiprocessing.get_context("fork")
    receive, send = context.Pipe(duplex=False)
    child = context.Process(target=_work, args=(call, [items[place] for place in places], send))
    child.start()
    send.close()
    return child, receive


def _work(call: Callable[[In], Out], items: Sequence[In], send: Connection) -> None:
    for item in items:
        send.send(call(item))
    send.close()
