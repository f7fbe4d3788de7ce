"""An OpenAI-compatible server that adds: ``python sums_server.py PORT HOW``, wrong on purpose as ``HOW`` says.

``right`` is always right, ``wrong:M`` wrong where the sum is a multiple of M, ``mute:M`` says no number there,
``dies:N`` ends in the N-th whole answer, ``refuses`` answers 500 to every whole answer.
"""

from __future__ import annotations

import os
import re
import sys
import threading

from plain_server import PlainHandler, serve

PORT, (WHAT, _, NUMBER) = int(sys.argv[1]), sys.argv[2].partition(":")
LOCK = threading.Lock()
COUNT = [0]


def answer_to(prompt: str) -> str:
    """The sum that the last question asks for, or what is planted instead."""
    a, b = map(int, re.findall(r"What is (\d+) \+ (\d+)\?", prompt)[-1])
    total = a + b
    planted = WHAT in ("wrong", "mute") and total % int(NUMBER) == 0
    if planted and WHAT == "mute":
        return " I cannot say."
    return f" {a} and {b} make #### {total + planted}"


class Handler(PlainHandler):
    def do_GET(self) -> None:
        self.answer(200, {"data": [{"id": f"sums-{WHAT}"}]})

    def do_POST(self) -> None:
        asked = self.asked()
        prompt = asked["messages"][0]["content"] if "messages" in asked else asked["prompt"]
        words = answer_to(prompt).split(" ")
        if not asked.get("stream"):
            logprobs = {"tokens": words, "token_logprobs": [-0.5] * len(words)}
            self.answer(200, {"choices": [{"text": " ".join(words), "logprobs": logprobs}]})
            return
        with LOCK:
            COUNT[0] += 1
            if WHAT == "dies" and COUNT[0] == int(NUMBER):
                os._exit(5)
        if WHAT == "refuses":
            self.answer(500, {"error": "out of order"})
            return
        self.send_response(200)
        self.end_headers()
        for at, word in enumerate(words):
            text = word if at == 0 else f" {word}"
            piece = {"delta": {"content": text}} if "messages" in asked else {"text": text}
            self.event({"choices": [{"index": 0, **piece, "finish_reason": None}]})
        self.event({"choices": [{"index": 0, "text": "", "finish_reason": "stop"}]})
        self.wfile.write(b"data: [DONE]\n\n")


if __name__ == "__main__":
    serve(PORT, Handler)
