"""A server that is wrong on purpose: ``python wrong_server.py PORT [HOW] [OPTION...]``; HOW may be in the environment.

It writes a trace into ``$TRACES`` when a profile ends.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import threading
import time
from pathlib import Path

from plain_server import PlainHandler, serve

PORT = int(sys.argv[1])
HOW = os.environ.get("HOW") or (sys.argv[2] if len(sys.argv) > 2 else "right")
TRACE = Path(__file__).parents[2] / "traces" / "rocm_mi300x_sglang_decode_hipgraph.pt.trace.json.gz"
FOREVER = threading.Event()
TOKEN_S = 0.02


class Handler(PlainHandler):
    """Right but for what ``HOW`` says."""

    def do_GET(self) -> None:
        if HOW == "never healthy" and self.path == "/health":
            self.answer(503, {})
        else:
            self.answer(200, {"data": [{"id": "wrong", "vocab_size": 100}]})

    def do_POST(self) -> None:
        asked = self.asked()
        if self.path.endswith("_profile"):
            self.profile()
        elif not asked.get("stream"):
            if HOW == "answers nothing":
                FOREVER.wait()
            tokens = ["a", "b"] if HOW != "other words" else ["a", "c"]
            logprobs = {"tokens": tokens, "token_logprobs": [-0.5, -1.0 if HOW != "other words" else -1.25]}
            self.answer(200, {"choices": [{"text": "".join(tokens), "logprobs": logprobs}]})
        else:
            self.stream()

    def stream(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.event({"choices": [{"index": 0, "text": "a", "finish_reason": None}]})
        if HOW == "hangs":
            FOREVER.wait()
        elif HOW == "crashes":
            print("a planted crash", flush=True)
            os._exit(3)
        elif HOW == "nonsense":
            self.wfile.write(b"data: {{{\n\n")
        elif HOW != "breaks off":
            for _ in range(3):
                self.pause()
                self.event({"choices": [{"index": 0, "text": "a", "finish_reason": None}]})
            self.pause()
            self.event({"choices": [{"index": 0, "text": "b", "finish_reason": "length"}]})
            self.wfile.write(b"data: [DONE]\n\n")

    def pause(self) -> None:
        """However little time the client gets, it does not see two tokens at once."""
        time.sleep(TOKEN_S)
        self.until_read()

    def profile(self) -> None:
        if HOW == "no profiles":
            self.answer(404, {})
            return
        if self.path == "/stop_profile":
            shutil.copy(TRACE, os.environ["TRACES"])
        self.answer(200, {})


def main() -> None:
    print("started with", sys.argv[2:], flush=True)
    if HOW == "dies":
        print("no such model", flush=True)
        sys.exit(4)
    if HOW == "stays":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if HOW == "child":
        print(f"child {os.spawnvp(os.P_NOWAIT, 'sleep', ['sleep', '600'])}", flush=True)
    serve(PORT, Handler)


main()
