"""Workers that fail to start, die, hang, are restarted or left behind; none of them takes the client with it."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import dsv4lab as lab
from dsv4lab.engine.client import EngineClient
from dsv4lab.engine.request import FinishReason, SamplingParams
from dsv4lab.errors import (
    CheckpointError,
    ConfigError,
    EngineError,
    EnvError,
    LabError,
    RequestError,
    TimeoutExceededError,
    WorkerDiedError,
)
from tests.engine.conftest import PATIENCE, ROOT, OpenFake, worker_path
from tests.engine.fake_runner import EXIT, GARBAGE, GATE

WAIT_S = 60.0
HOT = SamplingParams(temperature=1.0, seed=11)


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[tuple[str, Callable[[], None]]]:
    """A pipe that gated forwards wait for: its path, and how to let them all go on."""
    path = tmp_path / "gate"
    os.mkfifo(path)
    ends: list[int] = [os.open(path, os.O_RDWR)]

    def let_go() -> None:
        os.write(ends[0], b"x" * 4096)

    yield str(path), let_go
    os.close(ends[0])


@pytest.fixture
def reborn(client: EngineClient) -> EngineClient:
    """The file's client, whatever the last test did to its worker and its settings."""
    if not client.alive:
        client.restart()
    return client


def test_an_unknown_model_is_the_same_error_as_without_a_process() -> None:
    with pytest.raises(ConfigError, match="'no-such-model' is neither a preset"):
        lab.open("no-such-model")


def test_a_bad_checkpoint_is_the_workers_own_error(fake: OpenFake) -> None:
    with pytest.raises(CheckpointError, match=r"^model.safetensors: tensor embed.weight is missing$"):
        fake(seed=404)


def test_a_bug_at_the_start_is_told_by_its_name(fake: OpenFake) -> None:
    with pytest.raises(EngineError, match="ZeroDivisionError: planted bug"):
        fake(seed=500)


def test_a_worker_that_cannot_be_imported_shows_its_last_lines(fake: OpenFake, tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise SystemExit('a stray module')")
    with pytest.raises(WorkerDiedError, match=r"exit code 1; its last lines were:\n  a stray module$"):
        fake(environ={"PYTHONPATH": f"{tmp_path}{os.pathsep}{worker_path()}"})


def test_a_start_that_takes_too_long_is_given_up(fake: OpenFake, gone: Callable[[int], bool]) -> None:
    with pytest.raises(TimeoutExceededError, match=r"not ready within 0\.01 s"):
        fake(patience=replace(PATIENCE, start_s=0.01))


def test_killing_the_worker_is_an_error_and_one_call_restarts_it(reborn: EngineClient) -> None:
    client = reborn
    before = client.generate([30, 31], max_new_tokens=5)
    deaths: list[LabError] = []
    dead = threading.Event()
    client.on_exit(lambda error: (deaths.append(error), dead.set()))
    handle = client.submit([32], max_new_tokens=15_000)
    tokens = iter(handle)
    next(tokens)
    assert client.pid is not None
    os.kill(client.pid, signal.SIGKILL)
    with pytest.raises(WorkerDiedError, match=r"killed by signal 9 \(SIGKILL\)"):
        for _ in tokens:
            pass
    with pytest.raises(WorkerDiedError, match="SIGKILL"):
        handle.result(WAIT_S)
    assert handle.finish_reason is FinishReason.ERROR
    for call in (client.pool_snapshot, client.ops, client.profile, lambda: client.generate([30])):
        with pytest.raises(WorkerDiedError, match="SIGKILL"):
            call()
    status = client.status()
    assert (status["alive"], status["pid"], "SIGKILL" in status["error"]) == (False, None, True)
    assert dead.wait(WAIT_S)
    assert [type(error) for error in deaths] == [WorkerDiedError]
    assert "no worker" in repr(client)
    client.restart()
    assert client.generate([30, 31], max_new_tokens=5).tokens == before.tokens
    assert client.status()["error"] is None


def test_a_worker_that_exits_tells_its_code_and_last_words(reborn: EngineClient) -> None:
    client = reborn
    with pytest.raises(WorkerDiedError, match=r"exit code 7; its last lines were:\n(.*\n)*  last of the last words"):
        client.generate([[30], [EXIT]], max_new_tokens=500)
    with pytest.raises(WorkerDiedError, match="last of the last words"):
        client.set_plan("hip")


def test_a_malformed_message_of_the_worker_ends_the_connection_with_one_error(
    reborn: EngineClient, gone: Callable[[int], bool]
) -> None:
    client = reborn
    pid = client.pid
    assert pid is not None
    with pytest.raises(EngineError, match=r"^malformed message: "):
        client.generate([GARBAGE], max_new_tokens=500)
    assert gone(pid)


def test_a_malformed_message_to_the_worker_ends_it_with_one_error(
    reborn: EngineClient, gone: Callable[[int], bool]
) -> None:
    client = reborn
    pid, handle = client.pid, client.submit([30], max_new_tokens=15_000)
    assert pid is not None
    session: Any = client._link._session
    session._process._outbox.put(b"\xc1 is no message")
    with pytest.raises(EngineError, match=r"^malformed message: MessagePack data is malformed"):
        handle.result(WAIT_S)
    assert gone(pid)


def test_a_worker_that_hangs_is_waited_for_with_a_limit_and_replaced(
    fake: OpenFake, gate: tuple[str, Callable[[], None]]
) -> None:
    patience = replace(PATIENCE, call_s=0.2, stall_s=0.3, stop_s=0.2)
    client = fake(environ={"FAKE_GATE": gate[0]}, patience=patience)
    handle = client.submit([GATE], max_new_tokens=5)
    with pytest.raises(TimeoutExceededError, match=r"did not answer within 0\.2 s"):
        _ask_until_it_hangs(client)
    with pytest.raises(TimeoutExceededError, match=f"request {handle.request_id} has not ended within 0.1 s"):
        handle.result(0.1)
    with pytest.raises(TimeoutExceededError, match="the worker has said nothing for"):
        handle.result()
    with pytest.raises(TimeoutExceededError):
        client.generate([GATE, 30], timeout_s=0.05)
    client.abort(handle.request_id)
    pid = client.pid
    gate[1]()
    client.restart()
    assert client.pid != pid
    assert len(client.generate([30], max_new_tokens=3, timeout_s=WAIT_S).tokens[0]) == 3


def _ask_until_it_hangs(client: EngineClient) -> None:
    while True:  # the first questions may come before the forward that hangs
        client.ops()


@pytest.mark.parametrize("sampling", [SamplingParams(), HOT], ids=["greedy", "sampled"])
def test_requests_in_flight_go_on_in_the_new_worker(
    fake: OpenFake, gate: tuple[str, Callable[[], None]], sampling: SamplingParams
) -> None:
    client = fake(environ={"FAKE_GATE": gate[0]})
    gate[1]()
    plain = client.generate([[GATE, 5], [40, 41]], max_new_tokens=30, sampling=sampling).tokens
    os.read(fd := os.open(gate[0], os.O_RDWR | os.O_NONBLOCK), 65536)  # close the gate again
    os.write(fd, b"123")
    gated, waiting = (client.submit(p, max_new_tokens=30, sampling=sampling) for p in ([GATE, 5], [40, 41]))
    stream = iter(gated)
    first = [next(stream) for _ in range(2)]
    stages: list[tuple[float, str]] = []
    restart = threading.Thread(target=client.set_hw_queues, args=(2, lambda f, s: (stages.append((f, s)), gate[1]())))
    gate[1]()
    restart.start()
    rest = list(stream)
    assert [first + rest, waiting.result(WAIT_S)] == plain
    restart.join(WAIT_S)
    os.close(fd)
    assert (client.hw_queues, client.ops()[0]["queues"]) == (2, "2")
    assert [f for f, _ in stages] == sorted(f for f, _ in stages)
    assert stages[-1] == (1.0, "ready")
    assert client.status()["in_flight"] == 0


def test_settings_and_watchers_outlive_a_restart(reborn: EngineClient) -> None:
    client = reborn
    seen = threading.Event()
    client.set_plan("hip")
    client.set_side_streams(1)
    client.on_step(lambda *_: seen.set())
    client.set_hw_queues(3)
    assert (client.program().plan, client.hw_queues, client.config.hw_queues) == ("hip/1", 3, 3)
    client.generate([30], max_new_tokens=3)
    assert seen.wait(WAIT_S)


def test_a_setting_that_is_refused_keeps_the_worker(reborn: EngineClient) -> None:
    client = reborn
    pid = client.pid
    with pytest.raises(ConfigError, match="hw_queues: got 99"):
        client.set_hw_queues(99)
    with pytest.raises(EnvError, match="GPU_MAX_HW_QUEUES='abc'"):
        client.set_env({"GPU_MAX_HW_QUEUES": "abc"})
    with pytest.raises(EnvError, match="name without '='"):
        client.set_env({"A=B": "c"})
    assert client.pid == pid
    assert client.generate([30], max_new_tokens=2).tokens


def test_environment_variables_are_set_for_the_new_worker(reborn: EngineClient) -> None:
    client = reborn
    client.set_env({"GPU_MAX_HW_QUEUES": "6", "FAKE_NOTE": "hello", "SGLANG_OPT_USE_MULTI_STREAM_OVERLAP": "1"})
    op = client.ops()[0]
    assert (op["queues"], op["note"], client.hw_queues, client.plan.name) == ("6", "hello", 6, "hip")
    client.set_env({"FAKE_NOTE": None})
    assert client.ops()[0]["note"] is None
    assert client.hw_queues == 6


def test_a_restart_that_fails_ends_requests_and_can_be_tried_again(reborn: EngineClient) -> None:
    client = reborn
    handle = client.submit([30], max_new_tokens=15_000)
    with pytest.raises(CheckpointError, match=r"embed.weight is missing"):
        client.set_env({"FAKE_NO_WEIGHTS": "1"})
    with pytest.raises(CheckpointError):
        handle.result(WAIT_S)
    with pytest.raises(CheckpointError):
        client.ops()
    assert client.status()["alive"] is False
    client.restart()
    assert client.generate([30], max_new_tokens=2).tokens


def test_a_restart_may_be_asked_from_a_callback(reborn: EngineClient) -> None:
    client = reborn
    done = threading.Event()

    def restart(_token: int) -> None:
        if not done.is_set():
            client.restart()
            done.set()

    handle = client.submit([30], max_new_tokens=2000, on_token=restart)
    assert len(handle.result(WAIT_S)) == 2000
    assert done.wait(WAIT_S)


def test_a_load_goes_on_after_a_restart_and_ends_with_a_crash(reborn: EngineClient) -> None:
    client = reborn
    client.start_load(2, prompt_tokens=10, max_new_tokens=2000)
    client.restart()
    assert len(client.profile(steps=3).steps) == 3
    assert any(client.status()["in_flight"] > 0 for _ in range(1000))  # both may just be between two of their requests
    assert client.pid is not None
    os.kill(client.pid, signal.SIGKILL)
    with pytest.raises(WorkerDiedError):
        client.submit([30], max_new_tokens=15_000).result(WAIT_S)
    assert client.load_running is None
    with pytest.raises(WorkerDiedError):
        client.start_load(2, prompt_tokens=10, max_new_tokens=2000)
    client.stop_load()
    client.restart()
    assert client.status()["in_flight"] == 0


def test_two_clients_are_two_engines(fake: OpenFake) -> None:
    first, second = fake(hw_queues=2), fake(hw_queues=5)
    assert first.pid != second.pid
    handles = [c.submit([30], max_new_tokens=200) for c in (first, second)]
    assert handles[0].result(WAIT_S) == handles[1].result(WAIT_S)
    assert [c.ops()[0]["queues"] for c in (first, second)] == ["2", "5"]
    first.close()
    assert second.generate([30], max_new_tokens=2).tokens


def test_closing_ends_the_worker_and_what_is_in_flight(fake: OpenFake, gone: Callable[[int], bool]) -> None:
    client = fake()
    pid, handle = client.pid, client.submit([30], max_new_tokens=15_000)
    assert pid is not None
    client.close()
    client.close()
    assert gone(pid)
    for call in (lambda: handle.result(WAIT_S), client.restart, client.ops, lambda: client.generate([3])):
        with pytest.raises(EngineError, match=r"the client (is|was) closed"):
            call()


def test_a_client_that_is_dropped_takes_its_worker_along(fake: OpenFake, gone: Callable[[int], bool]) -> None:
    from tests.engine.conftest import open_fake

    client = open_fake()
    pid = client.pid
    assert pid is not None
    client.generate([30], max_new_tokens=2)
    del client
    gc.collect()
    assert gone(pid)


ORPHAN = """
import os, signal, sys
from tests.engine.conftest import open_fake
client = open_fake()
handle = client.submit([30], max_new_tokens=15_000)
next(iter(handle))
print(client.pid, flush=True)
{end}
"""


@pytest.mark.parametrize(
    "end",
    ["os.kill(os.getpid(), signal.SIGKILL)", "os._exit(0)", "sys.exit(0)", "os.fork() or os.pause(); os._exit(0)"],
    ids=["killed", "gone", "exited", "forked"],
)
def test_no_worker_outlives_its_parent(end: str, gone: Callable[[int], bool]) -> None:
    """Also when a fork of the parent still holds the socket."""
    code = ORPHAN.format(end=end.replace("os.pause()", "signal.pause()"))
    env = {**os.environ, "PYTHONPATH": worker_path()}
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, env=env, cwd=ROOT, process_group=0)
    try:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        parent.wait(WAIT_S)
        assert gone(pid)
    finally:
        if "fork" in end:
            os.killpg(parent.pid, signal.SIGKILL)
        parent.stdout.close()


def test_a_worker_that_hangs_does_not_outlive_its_parent_either(
    gate: tuple[str, Callable[[], None]], gone: Callable[[int], bool]
) -> None:
    code = """
import os, sys
from tests.engine.conftest import open_fake
client = open_fake(environ={"FAKE_GATE": sys.argv[1]})
client.submit([14], max_new_tokens=5)
print(client.pid, flush=True)
os._exit(0)
"""
    env = {**os.environ, "PYTHONPATH": worker_path()}
    parent = subprocess.run([sys.executable, "-c", code, gate[0]], capture_output=True, env=env, cwd=ROOT, check=True)
    assert gone(int(parent.stdout))


def test_requests_are_checked_against_the_new_workers_limits(fake: OpenFake) -> None:
    client: EngineClient = fake(max_total_tokens=512)
    with pytest.raises(RequestError, match="the pool has 2: at most 480 prompt tokens fit"):
        client.submit([30] * 481)
    client.restart()
    assert len(client.generate([30] * 480).tokens[0]) == 32
