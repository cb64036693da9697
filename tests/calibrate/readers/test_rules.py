"""C20 and C21 for every kind of file: what is cast, what is ignored, and what is refused, in the same words."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from qtool.calibrate.samples import open_samples
from qtool.errors import DataError
from tests.calibrate.readers.support import info, save_npy, save_sets

ROWS = np.arange(40, dtype=np.float32).reshape(10, 4)
IDS = np.arange(10)[:, None]


def save(kind: str, folder: Path, **arrays) -> Path:
    """The arrays, of which the leading axis counts samples."""
    if kind == "npz":
        np.savez_compressed(folder / "data.npz", **arrays)
        return folder / "data.npz"
    return save_npy(folder / "data", **arrays) if kind == "npy" else save_sets(folder / "data", **arrays)


@pytest.fixture(params=["npz", "npy", "pb"])
def kind(request) -> str:
    return request.param


def fed(samples, name="x"):
    return np.concatenate([feeds[name] for feeds in samples.batches(4)])


def test_casts_are_noted(tmp_path, kind):
    data = save(kind, tmp_path, x=ROWS.astype(np.float64), ids=IDS.astype(np.int32))
    samples = open_samples(data, [info("x", ["N", 4]), info("ids", ["N", 1], "int64")])
    assert samples.notes == ("Input 'x': float64 cast to float32.", "Input 'ids': int32 cast to int64.")
    np.testing.assert_array_equal(fed(samples), ROWS)
    assert fed(samples, "ids").dtype == np.int64


def test_other_arrays_are_ignored_in_one_note(tmp_path, kind):
    samples = open_samples(save(kind, tmp_path, x=ROWS, labels=IDS), [info("x", ["N", 4])])
    (note,) = samples.notes
    assert note.endswith(": ignored 'labels': not among the model's inputs.")
    assert (" and 9 more" in note) == (kind == "pb")


@pytest.mark.parametrize(
    ("inputs", "arrays", "said"),
    [
        (
            [info("x", ["N", 4]), info("mask", ["N", 4], "int64")],
            {"x": ROWS, "labels": IDS},
            " has no array for input 'mask'; required: x, mask; given: ",
        ),
        ([info("x", ["N", 4], "int64")], {"x": ROWS}, ": input 'x' is float32; the model expects int64."),
        ([info("x", ["N", 4])], {"x": ROWS.astype(np.int64)}, ": input 'x' is int64; the model expects float32."),
        ([info("x", ["N", 4])], {"x": ROWS.astype(np.uint8)}, ": input 'x' is uint8; the model expects float32."),
        ([info("x", ["N", 4])], {"x": ROWS.astype(str)}, ": input 'x' is str"),
        ([info("x", ["N", 5])], {"x": ROWS}, "dimension 1 is 4, expected 5."),
        ([info("x", ["N", 2, 2])], {"x": ROWS}, ": 2 dimensions, expected 3."),
        ([info("x", ["N", 4], "int8")], {"x": (ROWS * 10).astype(np.int64)}, "which do not fit int8."),
        ([info("x", ["N", 4], "float16")], {"x": ROWS * 1e5}, "which do not fit float16."),
    ],
)
def test_what_does_not_fit_is_refused(tmp_path, kind, inputs, arrays, said):
    with pytest.raises(DataError) as caught:
        list(open_samples(save(kind, tmp_path, **arrays), inputs).batches())
    assert caught.value.message.startswith(f"Sample data '{tmp_path}/data")
    assert said in caught.value.message


def test_every_type_survives_a_shuffle(tmp_path):
    """Also scalars, text, empty arrays, and types that NumPy does not have."""
    inputs = [
        info("x", ["N", 4], ml_dtypes.bfloat16),
        info("past", ["N", 0, 2]),
        info("text", ["N"], "U"),
        info("flag", ["N"], "bool"),
        info("rate", [], "int64"),
    ]
    arrays = {
        "x": ROWS,
        "past": np.zeros((10, 0, 2), np.float32),
        "text": np.array([f"{'ß' * i}" for i in range(10)]),
        "flag": IDS[:, 0] % 2 == 0,
        "rate": np.int64(16000),
    }
    np.savez_compressed(tmp_path / "a.npz", **arrays)
    expected = list(open_samples(arrays, inputs, shuffle_seed=9).batches())
    found = list(open_samples(tmp_path / "a.npz", inputs, shuffle_seed=9).batches())
    for one, two in zip(expected, found, strict=True):
        for name in arrays:
            assert (one[name].dtype, one[name].shape) == (two[name].dtype, two[name].shape)
            np.testing.assert_array_equal(one[name], two[name])


def test_a_full_disk_is_one_line(tmp_path, monkeypatch):
    from qtool.calibrate import spool

    class Full:
        def write(self, _):
            raise OSError(28, "No space left on device")

        def close(self):
            pass

    monkeypatch.setattr(spool.tempfile, "TemporaryFile", Full)
    np.savez(tmp_path / "a.npz", x=ROWS)
    samples = open_samples(tmp_path / "a.npz", [info("x", ["N", 4])], shuffle_seed=0)
    with pytest.raises(DataError, match=r"their copy in a temporary file failed: No space left on device\.") as caught:
        next(samples.batches())
    assert caught.value.hint.startswith("Set TMPDIR")
