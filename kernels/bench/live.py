"""How long a live change of the plan takes: from the call to the end of the first decode step under the new plan.

    python kernels/bench/live.py [--preset flash] [--layers 6] [--concurrency 4] [--plans hip,cuda+moe,off]

A load keeps requests in flight meanwhile. Each plan is set twice: for the first time, when the bucket in use has to be
captured, and again, when its graph is there. Printed as JSON lines, times in milliseconds.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from collections.abc import Sequence
from statistics import median

import dsv4lab as lab
from dsv4lab.timeline.records import StepRecord

PATIENCE_S = 60.0


class Watch:
    """Decode steps as they come, some ten times a second; the worker's clock is this process's."""

    def __init__(self) -> None:
        self._came = threading.Condition()
        self.steps: list[StepRecord] = []

    def __call__(self, records: Sequence[StepRecord], timeline: object) -> None:
        """Keep the decode steps of ``records``."""
        with self._came:
            self.steps += [record for record in records if record.mode == "decode"]
            self._came.notify_all()

    def _found(self, plan: str, since_ns: int) -> StepRecord | None:
        return next((s for s in self.steps if s.plan == plan and s.start_ns >= since_ns), None)

    def first_ms(self, plan: str, since_ns: int) -> float:
        """From ``since_ns`` to the end of the first decode step under ``plan`` that began after it."""
        with self._came:
            if not self._came.wait_for(lambda: self._found(plan, since_ns) is not None, PATIENCE_S):
                raise TimeoutError(f"no decode step under plan {plan} within {PATIENCE_S:.0f} s")
            step = self._found(plan, since_ns)
            assert step is not None
            return (step.start_ns + step.dur_ns - since_ns) / 1e6


def main() -> int:
    """Run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", default="flash")
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--concurrency", type=int, default=4)
    parser.add_argument("--prompt-tokens", type=int, default=1024)
    parser.add_argument("--plans", default="hip,cuda+moe,off")
    args = parser.parse_args()
    quantised = {} if args.preset in ("tiny", "demo") else {"weights": "stored", "num_layers": args.layers}
    room = args.concurrency * -(-(args.prompt_tokens + 2048 + 256) // 256) * 256
    began = time.perf_counter()
    with lab.open(
        args.preset, device=args.device, plan="off", max_running_requests=args.concurrency, max_total_tokens=room,
        **quantised,
    ) as client:  # fmt: skip
        say(kind="open", ms=(time.perf_counter() - began) * 1e3)
        watch = Watch()
        client.on_step(watch)
        client.start_load(args.concurrency, prompt_tokens=args.prompt_tokens, max_new_tokens=2048)
        watch.first_ms("off", time.perf_counter_ns())
        for turn in ("captured", "again"):
            for plan in args.plans.split(","):
                since = time.perf_counter_ns()
                client.set_plan(plan)
                returned = (time.perf_counter_ns() - since) / 1e6
                say(kind="plan", plan=plan, turn=turn, call_ms=returned, first_step_ms=watch.first_ms(plan, since))
                seen = len(watch.steps)
                time.sleep(0.4)
                durations = [step.dur_ns / 1e6 for step in watch.steps[seen:] if step.plan == plan]
                say(kind="steps", plan=plan, count=len(durations), median_ms=median(durations) if durations else None)
        client.stop_load()
    return 0


def say(**row: object) -> None:
    """One JSON line, at once."""
    print(json.dumps({name: round(v, 3) if isinstance(v, float) else v for name, v in row.items()}), flush=True)


if __name__ == "__main__":
    sys.exit(main())
