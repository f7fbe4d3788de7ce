"""``dsv4lab run`` with words, on a checkpoint with a tokenizer: the whole path, from text to text."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

import dsv4lab as lab
from dsv4lab.cli.main import main
from dsv4lab.cli.run_text import harmless
from dsv4lab.text.encoding import ChatOptions, encode_chat
from dsv4lab.text.tokenizer import load_tokenizer

Printed = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "tiny"
    assert main(["checkpoint", "synth", "--preset", "tiny", "--format", "deepseek", "--tokenizer", str(path)]) == 0
    (path / "encoding").mkdir()
    (path / "encoding" / "encoding_dsv4.py").write_text("REASONING_EFFORT_MAX = 'x'\n")
    return path


def run(line: str, capsys: Printed) -> dict[str, Any]:
    capsys.readouterr()
    assert main(["run", *shlex.split(line), "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def refused(line: str, capsys: Printed) -> str:
    capsys.readouterr()
    assert main(["run", *shlex.split(line)]) == 2
    return capsys.readouterr().err


def test_prompts_as_json(checkpoint: Path, capsys: Printed) -> None:
    tokenizer = load_tokenizer(checkpoint)
    line = f"--checkpoint {checkpoint} --prompt 'The stream' --prompt 'a 🙂' --max-new-tokens 6 --temperature 1"
    found = run(f"{line} --sampling-seed 4 --repetition-penalty 1.2 --min-p 0.01 --logprobs 2", capsys)
    assert set(found) >= {"tokens", "texts", "ttft_ms", "tpot_ms", "stream_busy", "plan", "finish_reasons", "logprobs"}
    assert found["texts"] == [tokenizer.decode(tokens, special=False) for tokens in found["tokens"]]
    for tokens, logprobs in zip(found["tokens"], found["logprobs"], strict=True):
        assert [entry["token"] for entry in logprobs] == tokens
        assert all(len(entry["top"]) == 2 and entry["logprob"] < 0 for entry in logprobs)
    with lab.open(checkpoint, max_running_requests=1) as client:
        params = lab.SamplingParams(temperature=1.0, seed=4, repetition_penalty=1.2, min_p=0.01)
        again = client.generate("a 🙂", max_new_tokens=6, sampling=params)
        assert again.tokens == found["tokens"][1:]
        assert again.texts == found["texts"][1:]
        options = ChatOptions(effort="max")
        chat = client.chat([{"role": "user", "content": "Hi"}], options=options, max_new_tokens=4)
        profile = ChatOptions(effort="max", profile="preview")
        prompt = encode_chat([{"role": "user", "content": "Hi"}], None, profile)
        assert chat.prompt_tokens == len(tokenizer.encode_prompt(prompt))


def test_a_conversation_from_a_file_as_json(checkpoint: Path, capsys: Printed, tmp_path: Path) -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]
    file = tmp_path / "chat.json"
    file.write_text(json.dumps({"messages": messages, "tools": None}))
    found = run(f"--checkpoint {checkpoint} --max-new-tokens 5 --no-thinking --messages {file}", capsys)
    assert found["message"]["role"] == "assistant"
    assert found["message"]["content"] == found["texts"][0]
    assert found["message"]["reasoning_content"] == ""
    prompt = encode_chat(messages, None, ChatOptions(thinking=False))
    assert found["prompt_tokens"] == len(load_tokenizer(checkpoint).encode_prompt(prompt))


def test_text_is_printed_as_it_comes(checkpoint: Path, capsys: Printed) -> None:
    line = f"run --checkpoint {checkpoint} --max-new-tokens 8"
    capsys.readouterr()
    assert main(shlex.split(f"{line} --prompt Hello --logprobs 1")) == 0
    out, err = capsys.readouterr()
    assert "8 tokens, ended by length" in err
    assert "likeliest" in out
    assert main(shlex.split(f"{line} --chat Hello --system 'Be brief.' --reasoning-effort low")) == 0
    assert capsys.readouterr().out.startswith("reasoning\n")


def test_a_synthetic_load_takes_the_same_options(capsys: Printed) -> None:
    found = run("--preset tiny --prompt-tokens 5 --max-new-tokens 4 --top-k 1 --temperature 3 --logprobs 1", capsys)
    assert [entry["top"][0][0] for entry in found["logprobs"][0]] == found["tokens"][0]


def test_what_makes_no_sense_is_refused(checkpoint: Path, capsys: Printed, tmp_path: Path) -> None:
    assert "--concurrency: it is for synthetic loads" in refused("--prompt x --concurrency 2", capsys)
    assert "--prompt-tokens: it is for synthetic loads" in refused("--chat x --prompt-tokens 2", capsys)
    assert "--system: it needs --chat or --messages" in refused("--prompt x --system y", capsys)
    assert "--reasoning-effort: it needs --chat" in refused("--reasoning-effort max", capsys)
    assert "--min-p is 2.0: it takes a number from 0" in refused("--min-p 2", capsys)
    assert "--sampling-seed is -1" in refused("--sampling-seed -1", capsys)
    assert "--top-k: got '1.5', it takes an integer" in refused("--top-k 1.5", capsys)
    assert "No such file" in refused(f"--messages {tmp_path / 'none.json'}", capsys)
    broken = tmp_path / "broken.json"
    broken.write_text('{"messages": [{"role": "user"}, 5]}')
    assert "messages[1] is int: it takes an object" in refused(f"--messages {broken}", capsys)
    (checkpoint / "tokenizer.json").rename(tmp_path / "tokenizer.json")
    assert "no tokenizer.json there" in refused(f"--checkpoint {checkpoint} --prompt x", capsys)


def test_what_a_model_writes_does_not_steer_a_terminal() -> None:
    assert harmless("a\n\tb\x1b[2J\x07é🙂\u202e") == "a\n\tb\\x1b[2J\\x07é🙂\\u202e"
    assert harmless("👩\u200d👧") == "👩\u200d👧"
