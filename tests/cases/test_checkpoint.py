"""Interrupted calibration goes on from its checkpoint and ends with the bytes of a run that was never interrupted."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import qtool
from qtool.api import _checkpoint
from qtool.calibrate.statsfile import load_statistics
from qtool.config import QuantConfig
from qtool.errors import ConfigError, DataError
from tests.cases.files_support import mlp, random, snapshot

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """A model, two files of samples, and the statistics of all of them."""
    onnx.save(mlp(), tmp_path / "m.onnx")
    np.savez(tmp_path / "a.npz", x=random(23, 8, seed=1))
    np.savez(tmp_path / "b.npz", x=random(17, 8, seed=2))
    qtool.calibrate(tmp_path / "m.onnx", data(tmp_path), output=tmp_path / "whole.npz")
    return tmp_path


def data(folder: Path) -> list[Path]:
    return [folder / "a.npz", folder / "b.npz"]


class Stopped(Exception):
    """Stands for whatever ends a run."""


def interrupted(folder: Path, given: Any, monkeypatch: pytest.MonkeyPatch, *, after: int, **options: Any) -> None:
    """A run that ends right after it has written some checkpoints."""
    save, calls = _checkpoint.Checkpoint.save, 0

    def stopping(self: Any, statistics: Any) -> None:
        nonlocal calls
        save(self, statistics)
        calls += 1
        if calls == after:
            raise Stopped

    with monkeypatch.context() as patch:
        patch.setattr(_checkpoint.Checkpoint, "save", stopping)
        with pytest.raises(Stopped):
            calibrate(folder, given, **options)


def calibrate(folder: Path, given: Any = None, **options: Any) -> Any:
    fields: dict[str, Any] = {"output": folder / "s.npz", "checkpoint": 7, "batch": 3}
    model = options.pop("model", folder / "m.onnx")
    return qtool.calibrate(model, data(folder) if given is None else given, **fields | options)


@pytest.mark.parametrize("after", [1, 2, 4])
def test_a_run_goes_on_and_ends_with_the_same_bytes(work, monkeypatch, after):
    interrupted(work, None, monkeypatch, after=after)
    assert not (work / "s.npz").exists()
    seen = load_statistics(work / "s.npz.partial")
    assert 7 * after <= seen.samples < 40
    progress = []
    result = calibrate(work, batch=40, progress=lambda *args: progress.append(args))
    assert progress[0][1] > seen.samples
    assert progress[-1] == ("calibrate", 40, 40)
    assert f"Went on after sample {seen.samples} of 40, from '{work / 's.npz.partial'}'." in result.notes
    assert result.samples == 40
    assert (work / "s.npz").read_bytes() == (work / "whole.npz").read_bytes()
    assert sorted(p.name for p in work.iterdir()) == ["a.npz", "b.npz", "m.onnx", "s.npz", "whole.npz"]


def test_several_interruptions_of_a_shuffled_part(work, monkeypatch):
    options = {"samples": 30, "shuffle": 5}
    qtool.calibrate(work / "m.onnx", data(work), output=work / "part.npz", **options)
    for _ in range(3):
        interrupted(work, None, monkeypatch, after=1, **options)
    calibrate(work, **options)
    assert (work / "s.npz").read_bytes() == (work / "part.npz").read_bytes()


def test_samples_in_memory(work, monkeypatch):
    items = [{"x": row} for row in random(40, 8, seed=3)]
    qtool.calibrate(work / "m.onnx", items, output=work / "memory.npz")
    interrupted(work, items, monkeypatch, after=2)
    calibrate(work, items)
    assert (work / "s.npz").read_bytes() == (work / "memory.npz").read_bytes()
    interrupted(work, items, monkeypatch, after=2, force=True)
    with pytest.raises(
        DataError, match="is of other data than the first 18 samples of this run: it is of other samples"
    ):
        calibrate(work, items[::-1], force=True)


def test_a_run_of_which_everything_was_seen(work, monkeypatch):
    interrupted(work, None, monkeypatch, after=2)
    seen = load_statistics(work / "s.npz.partial").samples
    qtool.calibrate(work / "m.onnx", data(work), output=work / "part.npz", samples=seen)
    calibrate(work, samples=seen)
    assert (work / "s.npz").read_bytes() == (work / "part.npz").read_bytes()


def test_more_samples_than_the_checkpoint_was_made_for(work, monkeypatch):
    """What comes after the checkpoint is free: it says what was seen, not what will be."""
    interrupted(work, data(work)[:1], monkeypatch, after=2)
    calibrate(work)
    assert (work / "s.npz").read_bytes() == (work / "whole.npz").read_bytes()


def test_a_checkpoint_is_statistics_that_can_be_shown_and_merged(work, monkeypatch):
    interrupted(work, None, monkeypatch, after=1)
    seen = qtool.load_stats(work / "s.npz.partial").samples
    qtool.calibrate(work / "m.onnx", data(work), output=work / "first.npz", samples=seen)
    assert qtool.diff_stats(work / "s.npz.partial", work / "first.npz").equal


# ------------------------------------------------------------------------------------------- what does not belong


def refused(work: Path, given: Any = None, **options: Any) -> str:
    before = snapshot(work)
    with pytest.raises(DataError) as caught:
        calibrate(work, given, **options)
    assert snapshot(work) == before
    assert caught.value.hint == "Delete it to start over, or choose another output with -o."
    assert str(work / "s.npz.partial") in caught.value.message
    return caught.value.message


def test_other_models_data_and_settings_are_refused(work, monkeypatch):
    interrupted(work, None, monkeypatch, after=2)
    assert "belongs to another model: opset 'ai.onnx' differs" in refused(work, model=mlp(opset=18))
    assert "made with other settings: only it observes tensor 'x'" in refused(
        work, config=QuantConfig(include=("fc2",))
    )
    assert "is of 18 samples; this run has 15" in refused(work, samples=15)
    np.savez(work / "a.npz", x=random(23, 8, seed=7))
    said = refused(work)
    assert "is of other data than the first 18 samples of this run: the data file with SHA-256 " in said
    assert "is not among them" in said


def test_nans_that_were_left_out_are_not_taken_over_by_a_run_that_stops_at_them(work, monkeypatch):
    x = random(23, 8, seed=1)
    x[2, 3] = np.nan
    np.savez(work / "a.npz", x=x)
    qtool.calibrate(work / "m.onnx", data(work), output=work / "skipped.npz", on_nan="skip")
    interrupted(work, None, monkeypatch, after=2, on_nan="skip")
    before = snapshot(work)
    with pytest.raises(DataError) as caught:
        calibrate(work)
    assert caught.value.message == (
        f"Checkpoint '{work / 's.npz.partial'}' left out 1 NaN of 144 values in tensor 'x'; this run stops at the "
        "first NaN."
    )
    assert (caught.value.hint or "").startswith("Go on with --on-nan skip.")
    assert snapshot(work) == before
    calibrate(work, on_nan="skip")
    assert (work / "s.npz").read_bytes() == (work / "skipped.npz").read_bytes()


def test_another_order_is_refused(work, monkeypatch):
    interrupted(work, data(work)[:1], monkeypatch, after=2)
    assert "it took others of the same files" in refused(work, data(work)[:1], shuffle=1)


@pytest.mark.parametrize("content", [b"", b"PK", b"not statistics"])
def test_a_file_that_is_no_checkpoint_is_refused_and_kept(work, content):
    (work / "s.npz.partial").write_bytes(content)
    assert "Checkpoint cannot be used: Statistics file" in refused(work)


def test_a_cut_checkpoint_is_refused(work, monkeypatch):
    interrupted(work, None, monkeypatch, after=2)
    held = (work / "s.npz.partial").read_bytes()
    (work / "s.npz.partial").write_bytes(held[: len(held) // 2])
    refused(work)


def test_what_cannot_be_a_checkpoint(work):
    with pytest.raises(ConfigError, match="expected an output"):
        qtool.calibrate(work / "m.onnx", data(work), checkpoint=3)
    with pytest.raises(ConfigError, match="expected 1 or more"):
        calibrate(work, checkpoint=0)


# --------------------------------------------------------------------------------------------------- real processes


def started(folder: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "qtool", "calibrate", "m.onnx", "--data", "long.npz", "-o", "s.npz"]
    return subprocess.Popen(
        [*command, "--checkpoint", "100", "--batch", "1"],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.fixture
def long(tmp_path: Path) -> Path:
    """A run that takes some seconds, one sample at a time."""
    onnx.save(mlp(), tmp_path / "m.onnx")
    np.savez(tmp_path / "long.npz", x=random(12000, 8, seed=4))
    return tmp_path


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_process_that_is_killed(long, how):
    for _ in range(2):
        held = (long / "s.npz.partial").stat().st_mtime_ns if (long / "s.npz.partial").exists() else 0
        process = started(long)
        for _ in range(6000):
            if (long / "s.npz.partial").exists() and (long / "s.npz.partial").stat().st_mtime_ns != held:
                break
            assert process.poll() is None, process.communicate()
            time.sleep(0.005)
        process.send_signal(how)
        _, said = process.communicate(timeout=60)
        assert process.returncode == (130 if how == signal.SIGINT else -how)
        assert not (long / "s.npz").exists()
        if how == signal.SIGINT:
            assert said.splitlines()[-2:] == [
                "error: interrupted, 's.npz.partial' is kept, and 's.npz' was not written",
                "hint: The same command goes on from there.",
            ]
            assert sorted(p.name for p in long.iterdir()) == ["long.npz", "m.onnx", "s.npz.partial"]
    assert 200 <= load_statistics(long / "s.npz.partial").samples < 12000
    calibrate(long, long / "long.npz", checkpoint=4000, batch=None)
    qtool.calibrate(long / "m.onnx", long / "long.npz", output=long / "whole.npz")
    assert (long / "s.npz").read_bytes() == (long / "whole.npz").read_bytes()
    assert sorted(p.name for p in long.iterdir()) == ["long.npz", "m.onnx", "s.npz", "whole.npz"]
