"""Bundles: read back as written, refused with file and member where they are damaged or hostile, compared, shown."""

from __future__ import annotations

import dataclasses
import gzip
import json
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import dsv4lab as lab
from dsv4lab.cli.main import main
from dsv4lab.errors import BundleError
from dsv4lab.tuning.bundle import archive, layout
from dsv4lab.tuning.bundle.bundle import load_bundle
from dsv4lab.tuning.bundle.scrub import scrubbed, scrubber
from tests.unit import bundles


def rezip(path: Path, change: Callable[[dict[str, bytes]], None]) -> Path:
    """The zip at ``path`` with other members, as someone without this package would write it."""
    with zipfile.ZipFile(path) as old:
        members = {name: old.read(name) for name in old.namelist()}
    change(members)
    with zipfile.ZipFile(path, "w") as new:
        for name, data in members.items():
            new.writestr(name, data)
    return path


def refused(path: Path) -> str:
    with pytest.raises(BundleError) as caught:
        load_bundle(path)
    text = str(caught.value)
    assert str(path) in text
    assert "\n" not in text
    return text.replace(str(path), "FILE")


def test_what_was_written_is_read_back_and_frozen(tmp_path: Path) -> None:
    bundle = lab.load_bundle(bundles.write(tmp_path / "a.zip"))
    assert bundle.overlap == bundles.record()
    assert bundle.selfcheck is not None
    assert [row.kernel for row in bundle.selfcheck] == ["rms_norm", "swiglu"]
    assert bundle.probe is not None
    assert bundle.probe.found["queues"] == 8
    assert bundle.passes
    trace = bundle.traces[bundles.TRACE]
    assert (len(trace), trace.stream_busy().wall_ns) == (4, 35_000)
    with pytest.raises(dataclasses.FrozenInstanceError):
        bundle.probe = None  # type: ignore[misc]


def test_equal_contents_are_equal_files(tmp_path: Path) -> None:
    a, b = bundles.write(tmp_path / "a.zip"), bundles.write(tmp_path / "b.zip")
    assert a.read_bytes() == b.read_bytes()


def test_a_part_that_failed_there_is_none_here(tmp_path: Path) -> None:
    members = bundles.contents(overlap=None)
    path = bundles.write(tmp_path / "a.zip", members, failures={"overlap": "EngineError: it hung"})
    bundle = load_bundle(path)
    assert bundle.overlap is None
    assert not bundle.passes
    silent = bundles.write(tmp_path / "b.zip", members)
    assert "member overlap.json is missing, and the manifest tells of no failure" in refused(silent)


def test_files_that_are_no_bundles(tmp_path: Path) -> None:
    assert "cannot be read (No such file" in refused(tmp_path / "none.zip")
    assert "cannot be read" in refused(tmp_path)
    text = tmp_path / "text.zip"
    text.write_bytes(b"hello" * 100)
    assert "damaged, or none" in refused(text)
    cut = bundles.write(tmp_path / "cut.zip")
    cut.write_bytes(cut.read_bytes()[:-200])
    assert "damaged, or none" in refused(cut)
    other = tmp_path / "other.zip"
    with zipfile.ZipFile(other, "w") as new:
        new.writestr("readme.txt", "hello")
    assert "member manifest.json is missing: this is no bundle" in refused(other)


def test_a_flipped_byte_is_found(tmp_path: Path) -> None:
    path = bundles.write(tmp_path / "a.zip")
    data = bytearray(path.read_bytes())
    at = data.index(b"traces/") + 200
    data[at] ^= 0xFF
    path.write_bytes(data)
    assert "FILE" in refused(path)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("../../evil.json", "member '../../evil.json' has no place in a bundle"),
        ("/etc/passwd", "member '/etc/passwd' has no place in a bundle"),
        ("traces/../x.pt.trace.json.gz", "has no place in a bundle"),
        ("traces/sub/x.pt.trace.json.gz", "has no place in a bundle"),
        ("notes.txt", "member 'notes.txt' has no place in a bundle"),
        ("traces/more.pt.trace.json.gz", "member traces/more.pt.trace.json.gz is not in the manifest"),
    ],
)
def test_members_that_do_not_belong(tmp_path: Path, name: str, says: str) -> None:
    path = rezip(bundles.write(tmp_path / "a.zip"), lambda members: members.update({name: b"x"}))
    assert says in refused(path)
    assert [p.name for p in tmp_path.iterdir()] == ["a.zip"], "nothing was unpacked"


def test_members_that_are_gone_or_other(tmp_path: Path) -> None:
    gone = rezip(bundles.write(tmp_path / "a.zip"), lambda members: members.pop("probe.json"))
    assert "member 'probe.json', which the manifest lists, is missing" in refused(gone)
    other = rezip(bundles.write(tmp_path / "b.zip"), lambda members: members.update({"report.md": b"# Better\n"}))
    assert "member report.md is not the one that the manifest describes" in refused(other)


def manifest_with(**changes: Any) -> Callable[[dict[str, bytes]], None]:
    def change(members: dict[str, bytes]) -> None:
        document = {**json.loads(members["manifest.json"]), **changes}
        members["manifest.json"] = json.dumps(document).encode()

    return change


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"version": 2}, "member manifest.json: version is 2: this dsv4lab reads version 1"),
        ({"version": None}, "version is None"),
        ({"kind": "something"}, "kind is not 'dsv4lab bundle'"),
        ({"device": 7}, "member manifest.json: Expected `str`, got `int` - at `$.device`"),
        ({"members": "all"}, "member manifest.json: Expected `array`"),
        ({"members": [{"name": "probe.json"}]}, "member manifest.json: Object missing required field"),
    ],
)
def test_manifests_of_other_versions_and_shapes(tmp_path: Path, changes: dict[str, Any], says: str) -> None:
    path = rezip(bundles.write(tmp_path / "a.zip"), manifest_with(**changes))
    assert says in refused(path)


@pytest.mark.parametrize(
    ("member", "data", "says"),
    [
        ("overlap", b"{", "member overlap.json is not JSON"),
        ("overlap", b"[" * 100_000, "member overlap.json is not JSON"),
        ("overlap", b"[]", "member overlap.json: this is no record"),
        ("probe", b"[1]", "member probe.json: Expected `object`, got `array`"),
        ("selfcheck", b"7", "member selfcheck.json: Expected `array`"),
        ("selfcheck", b'{"checks": [{"kernel": "x"}]}', "member selfcheck.json: Object missing required field"),
    ],
)
def test_parts_that_are_not_what_they_should_be(tmp_path: Path, member: str, data: bytes, says: str) -> None:
    assert says in refused(bundles.write(tmp_path / "a.zip", bundles.contents(**{member: data})))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda d: d.update(schema=9), "schema is 9: this version reads 1"),
        (lambda d: d["settings"].update(shape="x"), "shape is 'x'"),
        (lambda d: d["levels"][0]["plans"].pop(0), "level 1: it takes different plans, off among them"),
        (lambda d: d["levels"][0]["plans"][0].update(rounds_us=[]), "the same number of rounds"),
        (lambda d: d["levels"][0]["plans"][0]["rounds_us"].__setitem__(0, -1.0), "times are above 0"),
        (lambda d: d["levels"][0]["plans"][2].update(serial="warp"), "serial is 'warp', which was not measured"),
        (lambda d: d["levels"][0].update(concurrency="one"), "Expected `int`, got `str`"),
    ],
)
def test_records_that_contradict_themselves(
    tmp_path: Path, change: Callable[[dict[str, Any]], None], says: str
) -> None:
    document = json.loads(json.dumps(bundles.record().to_json()))
    change(document)
    path = bundles.write(tmp_path / "a.zip", bundles.contents(overlap=json.dumps(document).encode()))
    text = refused(path)
    assert says in text
    assert "member overlap.json" in text


def test_bombs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    members = bundles.contents()
    members[f"traces/{bundles.TRACE}"] = gzip.compress(b"\0" * (3 << 20))
    path = bundles.write(tmp_path / "trace.zip", members)
    monkeypatch.setattr("dsv4lab.tuning.bundle.bundle.MAX_TRACE", 1 << 20)
    assert "unpacks to more than 1.00 MiB" in refused(path)
    big = bundles.write(tmp_path / "big.zip", {**bundles.contents(), "report.md": b"\0" * (2 << 20)})
    monkeypatch.setattr(archive, "MAX_MEMBER", 1 << 20)
    assert "member 'report.md' unpacks to 2.00 MiB: at most 1.00 MiB" in refused(big)
    monkeypatch.setattr(archive, "MAX_TOTAL", 1 << 20)
    assert "unpacks to 2.0" in refused(big)
    monkeypatch.setattr(archive, "MAX_FILE", 100)
    assert "is too large for a bundle" in refused(big)


def test_a_header_that_lies_about_its_size(tmp_path: Path) -> None:
    path = bundles.write(tmp_path / "a.zip", {**bundles.contents(), "report.md": b"\0" * (1 << 20)})
    data = bytearray(path.read_bytes())
    size = struct.pack("<I", 1 << 20)
    while (at := data.find(size)) >= 0:
        data[at : at + 4] = struct.pack("<I", 10)
    path.write_bytes(data)
    assert "FILE" in refused(path)


def test_many_and_double_members(tmp_path: Path) -> None:
    path = bundles.write(tmp_path / "a.zip")
    more = {f"traces/{n}.pt.trace.json.gz": b"" for n in range(layout.MAX_MEMBERS)}
    assert "members: a bundle has at most" in refused(rezip(path, lambda members: members.update(more)))
    double = bundles.write(tmp_path / "b.zip")
    with pytest.warns(UserWarning, match="Duplicate"), zipfile.ZipFile(double, "a") as added:
        added.writestr("probe.json", "{}")
    assert "member 'probe.json' is there twice" in refused(double)


def test_traces_that_are_none(tmp_path: Path) -> None:
    name = f"traces/{bundles.TRACE}"
    for data in (b"no gzip", gzip.compress(b"no trace"), bundles.trace_bytes()[:-20], bundles.trace_bytes() * 2):
        path = bundles.write(tmp_path / "a.zip", {**bundles.contents(), name: data})
        text = refused(path)
        assert f"member {name}" in text
        assert "/tmp" not in text


def test_a_file_is_whole_or_what_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = bundles.write(tmp_path / "a.zip")
    before = path.read_bytes()

    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(zipfile.ZipFile, "writestr", stop)
    with pytest.raises(KeyboardInterrupt):
        bundles.write(path)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["a.zip"]
    with pytest.raises(BundleError, match="cannot be written"):
        bundles.write(tmp_path / "no" / "a.zip")


def test_two_machines_side_by_side(tmp_path: Path) -> None:
    a = load_bundle(bundles.write(tmp_path / "a.zip"))
    checks = [{"backend": "triton", "kernel": "rms_norm", "case": "a", "passes": False, "text": "max 3"}]
    slower = bundles.record(levels=(bundles.level(1, 2000.0, 2100.0, 1900.0),))
    members = bundles.contents(
        selfcheck=json.dumps({"checks": checks}).encode(),
        overlap=json.dumps(slower.to_json()).encode(),
        probe=json.dumps({"schema": 1, "machine": {}, "found": {"queues": 4, "graph_us": 9.0}, "rows": []}).encode(),
    )
    b = load_bundle(bundles.write(tmp_path / "b.zip", members, device="AMD MI300X", machine={"hip": "7.2"}))
    found = a.compare(b)
    assert found.devices == ("NVIDIA H200", "AMD MI300X")
    assert {(f.name, f.a, f.b) for f in found.facts} == {
        ("gpu", "NVIDIA H200", None),
        ("hip", None, "7.2"),
        ("torch", "2.11", None),
    }
    assert [(c.kernel, c.a, c.b) for c in found.checks] == [("rms_norm", (1, 1), (0, 1)), ("swiglu", (1, 1), (0, 0))]
    assert [(c.name, c.a, c.b, c.ratio) for c in found.costs] == [
        ("queues", 8, 4, 0.5),
        ("period_us", 1.6, None, None),
        ("graph_us", None, 9.0, None),
    ]
    assert [pair.concurrency for pair in found.levels] == [1]
    pair = found.levels[0]
    assert (pair.a.control, pair.a.best) == ("off", "hip")
    assert pair.a.delta == pytest.approx(-0.08)
    assert pair.b.delta == pytest.approx(-0.05)
    assert pair.a.hidden == pytest.approx((1100 - 920) * 1.035 / 200)
    assert found.same_load
    assert not b.passes
    assert json.loads(json.dumps(found.to_json()))["levels"][0]["a"]["best"] == "hip"


def test_shown_and_compared_on_a_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = bundles.write(tmp_path / "a.zip", device="NVIDIA\x1b[31m H200 [bold]")
    assert main(["bundle", "show", str(path)]) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert "[bold]" in out
    assert "Kernels against the references" in out
    assert "-8.0 %" in out
    assert all(len(line) <= 80 for line in out.splitlines())
    assert main(["bundle", "compare", str(path), str(bundles.write(tmp_path / "b.zip"))]) == 0
    out = capsys.readouterr().out
    assert "Kernels that both checked passed the same number of cases." in out
    assert all(len(line) <= 80 for line in out.splitlines())
    assert main(["bundle", "show", str(path), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert set(told) == {"path", "manifest", "passes", "selfcheck", "probe", "overlap", "result", "traces"}
    assert told["traces"][bundles.TRACE]["rows"] == 4
    assert main(["bundle", "compare", str(path), str(path), "--json"]) == 0
    assert set(json.loads(capsys.readouterr().out)) == {"devices", "facts", "checks", "costs", "levels", "same_load"}
    assert main(["bundle", "show", str(tmp_path / "none.zip")]) == 2
    assert "cannot be read" in capsys.readouterr().err


def test_bad_kernels_are_named_with_what_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = {"backend": "triton", "kernel": "rms_norm", "case": "a", "passes": True, "text": "max 0"}
    bad = {**good, "case": "b", "passes": False, "text": "max 3\x1b[2J"}
    other = {**good, "kernel": "swiglu", "backend": "aiter"}
    documents = [json.dumps({"checks": checks}).encode() for checks in ([good, bad], [good, good, other])]
    a, b = (
        bundles.write(tmp_path / f"{at}.zip", bundles.contents(selfcheck=document))
        for at, document in enumerate(documents)
    )
    assert main(["bundle", "show", str(a)]) == 1
    out = capsys.readouterr().out
    assert "triton rms_norm, b: max 3" in out
    assert "\x1b" not in out
    assert main(["bundle", "compare", str(a), str(b)]) == 0
    out = capsys.readouterr().out
    assert "Kernels that passed differently" in out
    assert "Kernels that only one of the two checked: B 1 on aiter." in out


def test_texts_lose_folders_and_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("getpass.getuser", lambda: "ada")
    monkeypatch.setattr("platform.node", lambda: "engine-7")
    monkeypatch.setattr(Path, "home", lambda: Path("/home/ada"))
    scrub = scrubber()
    text = "at /home/ada/x/kernel.py:12, /opt/rocm-7.2/lib/libamdhip64.so.7 on engine-7 for ada, adage, a/b, 3/4"
    assert scrub(text) == "at kernel.py:12, libamdhip64.so.7 on host for user, adage, a/b, 3/4"
    assert scrub("see https://docs.nvidia.com/cuda/api/x.html") == "see https://docs.nvidia.com/cuda/api/x.html"
    assert scrubbed({"a": ["/home/ada/f", 3, None], "ada": True}, scrub) == {"a": ["f", 3, None], "user": True}
