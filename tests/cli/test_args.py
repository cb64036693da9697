"""Several values after one option."""

from __future__ import annotations

import numpy as np
import pytest

from qtool.calibrate.readers import readers
from qtool.cli._args import DATA_SUFFIXES, spread


def test_the_suffixes_are_those_of_the_readers():
    assert set(DATA_SUFFIXES) == {reader.suffix for reader in readers() if reader.takes_files}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("quantize m.onnx --calib a.npz b.npz -q", "quantize m.onnx --calib a.npz --calib b.npz -q"),
        ("quantize --calib a.npz b.npz m.onnx c.npz", "quantize --calib a.npz --calib b.npz m.onnx c.npz"),
        ("eval --data=a.npz B.NPY x=y.npy m q", "eval --data=a.npz --data B.NPY --data x=y.npy m q"),
        ("quantize --calib dir a.npz", "quantize --calib dir --calib a.npz"),
        ("quantize --calib --data a.npz", "quantize --calib --data --calib a.npz"),
        ("quantize m.onnx --stats a.npz b.npz", "quantize m.onnx --stats a.npz b.npz"),
        ("quantize --calib a.npz -o b.npz c.npz", "quantize --calib a.npz -o b.npz c.npz"),
        ("quantize --calib a.npz -- b.npz", "quantize --calib a.npz -- b.npz"),
        ("", ""),
    ],
)
def test_what_becomes_of_the_arguments(given, expected):
    assert spread(given.split()) == expected.split()


def test_a_glob_that_the_shell_expanded(examples, tmp_path, monkeypatch, qtool_command):
    monkeypatch.chdir(tmp_path)
    x = np.load(examples / "mnist_calib.npz")["Input3"]
    np.savez("a.npz", Input3=x[:3])
    np.savez("b.npz", Input3=x[3:5])
    ended = qtool_command("calibrate", str(examples / "mnist_cnn.onnx"), "--data", "a.npz", "b.npz", "-o", "s.npz")
    assert ended.code == 0, ended.err
    assert "observed on 5 samples" in ended.err
