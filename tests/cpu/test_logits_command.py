"""``dsv4lab logits``: its contract and its errors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from dsv4lab.checkpoint.synthetic import random_weights, write_checkpoint
from dsv4lab.cli.main import main
from dsv4lab.config.presets import preset


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny")
    config = preset("tiny")
    write_checkpoint(path, config, random_weights(config, 3), layout="hf")
    return path


def logits(capsys: pytest.CaptureFixture[str], *args: str) -> torch.Tensor:
    assert main(["logits", *args, "--json"]) == 0
    out = json.loads(capsys.readouterr().out)
    assert list(out) == ["logits"]
    return torch.tensor(out["logits"])


def test_a_row_per_position_and_chunks_agree(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base = ["--checkpoint", str(checkpoint), "--tokens", "5,9,12,7,300,2", "--dtype", "float32"]
    whole = logits(capsys, *base)
    assert whole.shape == (6, 512)
    assert (logits(capsys, *base, "--chunks", "2,1,3") - whole).abs().max() <= 1e-4
    assert (logits(capsys, *base, "--chunks", "1,1,1,1,1,1") - whole).abs().max() <= 1e-4


def test_a_preset_is_its_checkpoint(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a = logits(capsys, "--preset", "tiny", "--seed", "3", "--tokens", "5,9")
    b = logits(capsys, "--checkpoint", str(checkpoint), "--tokens", "5,9")
    assert torch.equal(a, b)


def test_the_table_names_the_likeliest_tokens(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["logits", "--preset", "tiny", "--tokens", "5,9"]) == 0
    out = capsys.readouterr().out
    assert "top 1" in out
    best = logits(capsys, "--preset", "tiny", "--tokens", "5,9")[1].argmax()
    assert f"{best}: " in out


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (["--preset", "tiny", "--tokens", "5,512"], "token 512 at place 1 is outside the vocabulary, 0..511"),
        (["--preset", "tiny", "--tokens", "5,x"], "--tokens: got '5,x'"),
        (["--preset", "tiny", "--tokens", "5,9", "--chunks", "1"], "--chunks: 1 sum to 1, --tokens has 2"),
        (["--preset", "huge", "--tokens", "5"], "huge"),
        (["--checkpoint", "/nonexistent", "--tokens", "5"], "/nonexistent"),
        (["--tokens", "5"], "--preset --checkpoint"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(args: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["logits", *args]) == 2
    captured = capsys.readouterr()
    assert text in captured.err
    assert captured.err.count("\n") == 1
    assert captured.out == ""
