"""Data of every kind on the command line: the same values make the same model."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.calibrate.readers.support import save_npy, save_sets
from tests.cli.fakes import strict_json

COUNT = 24


@pytest.fixture(scope="module")
def folder(examples, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    (folder / "m.onnx").write_bytes((examples / "mnist_cnn.onnx").read_bytes())
    x = np.load(examples / "mnist_calib.npz")["Input3"][:COUNT]
    np.savez(folder / "stored.npz", Input3=x)
    np.savez_compressed(folder / "deflated.npz", Input3=x)
    (folder / "parts").mkdir()
    for name, rows in (("b", x[10:]), ("a", x[:10])):
        np.savez_compressed(folder / "parts" / f"{name}.npz", Input3=rows)
    save_npy(folder / "named", Input3=x)
    save_npy(folder / "numbered", **{"0": x[:7], "1": x[7:]})
    save_npy(folder / "fortran", Input3=np.asfortranarray(x))
    save_sets(folder / "sets", Input3=x)
    return folder


@pytest.fixture
def here(folder, tmp_path, monkeypatch) -> Path:
    """The data by short names, and a place to write to."""
    for path in folder.iterdir():
        (tmp_path / path.name).symlink_to(path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


KINDS = (
    "stored.npz",
    "deflated.npz",
    "parts",
    "parts/*.npz",
    "named",
    "named/Input3.npy",
    "Input3=named/Input3.npy",
    "numbered/*.npy",
    "fortran",
    "sets",
    "sets/test_data_set_*",
)


def model(path: str | Path) -> bytes:
    """A model without what it says about its data."""
    proto = onnx.load(path)
    kept = [(p.key, p.value) for p in proto.metadata_props if p.key != "qtool.calibration.sha256"]
    assert len(kept) == len(proto.metadata_props) - 1
    del proto.metadata_props[:]
    for key, value in kept:
        proto.metadata_props.add(key=key, value=value)
    return proto.SerializeToString(deterministic=True)


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def test_each_kind_makes_the_same_model(here, qtool_command):
    made = {}
    for number, kind in enumerate(KINDS):
        ended = qtool_command("quantize", "m.onnx", "--calib", kind, "-o", f"{number}.onnx")
        assert (ended.code, ended.out) == (0, f"{number}.onnx\n"), ended.err
        assert "note:" not in ended.err
        made[kind] = digest(model(f"{number}.onnx"))
    assert set(made.values()) == {made["stored.npz"]}, made


def statistics(qtool_command, *args: str) -> dict[str, object]:
    ended = qtool_command("calibrate", "m.onnx", *args, "--json", "-", "--force", "-o", "s.npz")
    assert ended.code == 0, ended.err
    document = strict_json(ended.out)
    return {key: document[key] for key in document if key not in ("notes", "statistics", "seconds", "peak_rss_bytes")}


def test_order_and_batch_change_no_statistics(here, qtool_command):
    expected = statistics(qtool_command, "--data", "stored.npz")
    assert expected["samples"] == COUNT
    for args in (
        ["--data", "deflated.npz", "--shuffle", "7"],
        ["--data", "sets", "--shuffle", "7", "--batch", "3"],
        ["--data", "parts/b.npz", "--data", "parts/a.npz", "--batch", "auto"],
    ):
        assert statistics(qtool_command, *args) == expected
    plain, bytes_of_plain = statistics(qtool_command, "--data", "deflated.npz"), Path("s.npz").read_bytes()
    assert statistics(qtool_command, "--data", "deflated.npz", "--shuffle", "3", "--batch", "5") == plain
    assert Path("s.npz").read_bytes() == bytes_of_plain


def test_the_samples_that_are_chosen_do_not_depend_on_the_kind(here, qtool_command):
    for choice in (["--samples", "5"], ["--samples", "5", "--shuffle", "1"]):
        found = [statistics(qtool_command, "--data", kind, *choice) for kind in ("deflated.npz", "numbered", "sets")]
        assert found[0]["samples"] == 5
        assert found[0] == found[1] == found[2]
    first, chosen = (
        statistics(qtool_command, "--data", "named", "--samples", "5", *more) for more in ([], ["--shuffle", "1"])
    )
    assert first != chosen


def test_eval_takes_every_kind(here, qtool_command):
    for kind in ("parts", "named", "sets"):
        args = ["m.onnx", "m.onnx", "--data", kind, "--samples", "8", "--shuffle", "2", "--batch", "3", "--no-latency"]
        report = strict_json(qtool_command("eval", *args, "--json", "-").out)
        assert report["samples"] == 8


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--calib", "gone/*.npz"], "Sample data 'gone/*.npz' matches no file."),
        (["--calib", "."], "expected files of one kind"),
        (["--calib", "named", "--samples", "0"], "--samples"),
        (["--calib", "named", "--shuffle", "-1"], "--shuffle"),
        (
            ["--calib", "named", "--batch", "0"],
            "Option --batch is '0'; expected a number of samples from 1 on, or auto.",
        ),
        (["--calib", "named", "--batch", "²"], "Option --batch is '²'"),
        (["--calib", "Input3=gone.npy"], "Sample data 'gone.npy' cannot be read: No such file or directory."),
        (["--calib", "Input4=named/Input3.npy"], "has no array for input 'Input3'"),
        (["--random-calib", "4", "--samples", "2"], "A number of samples is given without calibration data"),
        (["--stats", "s.npz", "--shuffle", "2"], "A shuffle is given without calibration data"),
        (["--stats", "s.npz", "--batch", "2"], "Option --batch is about running the model on samples"),
        (["--stats", "s.npz", "--on-nan", "skip"], "Option --on-nan is about running the model on samples"),
        (["--calib", "named", "-o", "named/Input3.npy", "--force"], "named/Input3.npy"),
        (["--calib", "sets", "--json", "sets/test_data_set_3/input_0.pb"], "a file that the command needs itself"),
    ],
)
def test_what_is_wrong_is_one_line_and_nothing_is_written(here, qtool_command, args, said):
    before = sorted(here.rglob("*"))
    (here / "a.npz").write_bytes(b"")
    (here / "a.npy").write_bytes(b"")
    ended = qtool_command("quantize", "m.onnx", *args)
    assert (ended.code, ended.out) == (2, ""), ended.err
    assert said in ended.err
    (here / "a.npz").unlink()
    (here / "a.npy").unlink()
    assert sorted(here.rglob("*")) == before
