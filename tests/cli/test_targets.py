"""Files beside the result: refused before the work, whole or not there."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from qtool.cli import _targets
from qtool.cli._targets import check_targets, write_text
from qtool.errors import ConfigError


def refusal(targets: dict[str, str | None], *others: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        check_targets(targets, *others)
    return caught.value.message


def test_what_can_be_written_passes(tmp_path: Path):
    names = {"A": str(tmp_path / "a"), "B": str(tmp_path / "b"), "C": None, "D": "-"}
    check_targets(names, tmp_path / "input", None)
    assert list(tmp_path.iterdir()) == []


def test_two_targets_are_two_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    assert refusal({"A": "-", "B": "-"}) == "A and B are both '-', which is stdout; expected one of them there."
    monkeypatch.chdir(tmp_path)
    assert refusal({"A": "x", "B": str(tmp_path / "x")}).endswith("expected two names.")


def test_a_target_is_no_input_by_whatever_name(tmp_path: Path):
    model = tmp_path / "m.onnx"
    model.touch()
    (tmp_path / "link").symlink_to(model)
    for name in ("m.onnx", "link"):
        assert "needs itself" in refusal({"A": str(tmp_path / name)}, model)


def test_places_that_are_none(tmp_path: Path):
    assert refusal({"A": str(tmp_path)}) == f"A '{tmp_path}' is a folder; expected the name of a file."
    assert "there is no folder" in refusal({"A": str(tmp_path / "none" / "a")})


def test_a_file_is_replaced_as_a_whole(tmp_path: Path):
    path = tmp_path / "a"
    path.write_text("old")
    path.chmod(0o640)
    write_text("new é\udcff", str(path), "A")
    assert path.read_text() == "new é\\udcff"
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert list(tmp_path.iterdir()) == [path]


def test_a_new_file_has_the_permissions_of_any_new_file(tmp_path: Path):
    before = os.umask(0o027)
    try:
        write_text("x", str(tmp_path / "a"), "A")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o640


def test_a_link_stays_one(tmp_path: Path):
    (tmp_path / "b").symlink_to("a")
    write_text("x", str(tmp_path / "b"), "A")
    assert (tmp_path / "b").is_symlink()
    assert (tmp_path / "a").read_text() == "x"


def test_a_device_is_written_to(tmp_path: Path):
    write_text("x", os.devnull, "A")
    assert not Path(os.devnull).is_file()


def test_what_ends_early_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "a"
    path.write_text("old")

    def interrupt() -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(_targets, "_umask", interrupt)
    monkeypatch.setattr(_targets.Path, "chmod", lambda *_: interrupt())
    with pytest.raises(KeyboardInterrupt):
        write_text("new", str(path), "A")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]
