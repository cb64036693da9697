"""Statistics files: the round trip, equal bytes, and that nothing damaged is taken for statistics."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from qtool.calibrate import statsfile
from qtool.calibrate.coverage import file_use
from qtool.calibrate.kept import Kept, KeptBatch
from qtool.calibrate.saved import SavedStatistics
from qtool.calibrate.statistics import Statistics, TensorStatistics
from qtool.calibrate.statsfile import load_statistics, save_statistics
from qtool.calibrate.wanted import Wanted
from qtool.errors import ConfigError, DataError
from qtool.prepare.fingerprint import Fingerprint, Part

MODEL = Fingerprint(
    (Part("input", "x", "0" * 64), Part("tensor", "W/../é\ud800", "a1" * 32), Part("node", "n", "b2" * 32))
)


def observed(*arrays: Any, histogram: bool = True) -> Statistics:
    tensors = {
        f"t{i}/'\n": TensorStatistics.of(np.asarray(a, np.float32), histogram=histogram) for i, a in enumerate(arrays)
    }
    return Statistics(tensors, 5 if tensors else 0)


def with_channels() -> Statistics:
    """Tensors with and without channels, energies and values."""
    array = np.random.default_rng(2).standard_normal((4, 3)).astype(np.float32)
    wanted = {"a": Wanted("a", -1, np.array([1e-300, 0.0, 3.5])), "b": Wanted("b", 0), "c": None}
    tensors = {name: TensorStatistics.of(array, histogram=True, wanted=w, rows=4) for name, w in wanted.items()}
    tensors["d"] = TensorStatistics.empty(histogram=True, wanted=Wanted("d", 1))
    tensors["e"] = TensorStatistics.empty(histogram=True, wanted=Wanted("e", 1, np.ones(2)))
    return Statistics(tensors, 5)


def kept(*batches: dict[str, Any], cut: tuple[str, int] | None = ("cd" * 32, 3)) -> Kept:
    return Kept(tuple(KeptBatch("cd" * 32, i, len(b["x"]), b) for i, b in enumerate(batches)), cut)


def example(**changes: Any) -> SavedStatistics:
    values = np.random.default_rng(0).standard_normal(500) ** 3
    fields: dict[str, Any] = {
        "statistics": observed(values, [0.0, -0.0], [-np.inf, 3.0, np.nan], [np.nan], [], [1e-30, 3e38]),
        "model": MODEL,
        "coverage": (
            file_use("cd" * 32, 9, [(0, 2), (3, 4)], ["ab" * 32, "00" * 32]),
            file_use("ef" * 32, 2, [(0, 2)]),
        ),
        "kept": kept({"x": np.ones((2, 3), np.float32)}, {"x": np.zeros((1, 3), np.float32)}),
    }
    return SavedStatistics(**fields | changes)


def saved(folder: Path, value: SavedStatistics | None = None, name: str = "s.npz") -> Path:
    save_statistics(folder / name, value or example())
    return folder / name


def assert_same(got: SavedStatistics, expected: SavedStatistics) -> None:
    assert got.statistics == expected.statistics
    assert list(got.statistics) == list(expected.statistics)
    assert (got.model, got.coverage, got.kept.cut) == (expected.model, expected.coverage, expected.kept.cut)
    assert [b.place for b in got.kept.batches] == [b.place for b in expected.kept.batches]
    assert len(got.batches) == len(expected.batches)
    for (count, feeds), (expected_count, expected_feeds) in zip(got.batches, expected.batches, strict=True):
        assert count == expected_count
        assert list(feeds) == list(expected_feeds)
        for name, array in feeds.items():
            assert array.dtype == expected_feeds[name].dtype
            assert array.shape == expected_feeds[name].shape
            assert array.tobytes() == expected_feeds[name].tobytes()


# ------------------------------------------------------------------------------------------------------- round trip


def test_round_trip(tmp_path):
    assert_same(load_statistics(saved(tmp_path)), example())


@pytest.mark.parametrize("statistics", [Statistics({}, 0), observed([1.0, 2.0], histogram=False)])
def test_round_trip_without_histograms_or_tensors(tmp_path, statistics):
    value = example(statistics=statistics, kept=Kept())
    assert_same(load_statistics(saved(tmp_path, value)), value)


def test_round_trip_of_channels(tmp_path):
    value = example(statistics=with_channels())
    assert_same(load_statistics(saved(tmp_path, value)), value)
    with np.load(tmp_path / "s.npz") as archive:
        assert (archive["channel_absmax"].dtype, archive["channel_absmax"].shape) == (np.float32, (3 + 4 + 2,))
        assert archive["channel_energy"].tolist() == [1e-300, 0.0, 3.5, 1.0, 1.0]


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.lists(st.floats(width=32), max_size=20), max_size=4))
def test_round_trip_of_any_values(tmp_path, arrays):
    value = example(statistics=observed(*arrays))
    assert_same(load_statistics(saved(tmp_path, value)), value)


@pytest.mark.parametrize(
    "array",
    [
        np.array(True),
        np.array(7, np.int64),
        np.zeros((0, 3), np.float16),
        np.arange(6, dtype=np.uint8).reshape(1, 6),
        np.array([1.5, -2.0], ml_dtypes.bfloat16),
        np.array(1.5, ml_dtypes.bfloat16),
        np.array([1, -8], ml_dtypes.int4),
        np.array([1.5, 448.0], ml_dtypes.float8_e4m3fn),
        np.array([["some", "text"]]),
        np.array([1 + 2j], np.complex64),
        np.empty((0,), ml_dtypes.bfloat16),
    ],
    ids=lambda array: f"{array.dtype}{list(array.shape)}",
)
def test_batches_of_every_type(tmp_path, array):
    value = example(kept=kept({"x": np.ones((1, 2), np.float32), "état/..": array}))
    assert_same(load_statistics(saved(tmp_path, value)), value)


def test_equal_statistics_are_equal_bytes(tmp_path, monkeypatch):
    first = saved(tmp_path).read_bytes()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.setenv("TZ", "Pacific/Auckland")
    assert saved(tmp_path / "elsewhere", name="other.npz").read_bytes() == first
    assert str(tmp_path).encode() not in first


def test_numpy_opens_it_without_pickle(tmp_path):
    with np.load(saved(tmp_path), allow_pickle=False) as archive:
        assert archive.files == ["header", "histograms", "batch_0_0", "batch_1_0"]
        assert archive["histograms"].dtype == np.int64
        assert archive["histograms"].shape == (6, 8192)
        header = json.loads(archive["header"].tobytes())
    assert header["schema_version"] == 2
    assert header["sources"] == [
        {"sha256": "cd" * 32, "files": ["ab" * 32, "00" * 32], "held": 9, "used": [[0, 2, 1], [3, 4, 1]]},
        {"sha256": "ef" * 32, "files": [], "held": 2, "used": [[0, 2, 1]]},
    ]
    assert header["tensors"][2] | {"exponent": 0} == {
        "name": "t2/'\n", "count": 3, "nan": 1, "pos_inf": 0, "neg_inf": 1, "zeros": 0, "minimum": 3.0, "maximum": 3.0,
        "exponent": 0, "sample_ranges": 1, "sample_min_sum": f"{3 << 149:x}", "sample_max_sum": f"{3 << 149:x}",
        "channel_axis": None, "channel_absmax": None, "channel_energy": None,
        "clip_weight": 1.0, "floor": None, "coherence": 0.0,
    }  # fmt: skip


# ---------------------------------------------------------------------------------------------------------- writing


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path, monkeypatch):
    path = saved(tmp_path)
    before = path.read_bytes()

    def full(*args: Any, **options: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(statsfile, "_write_rows", full)
    with pytest.raises(ConfigError, match="cannot be written: No space left on device"):
        save_statistics(path, example(kept=Kept()))
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["s.npz"]


def test_an_interrupt_leaves_nothing(tmp_path, monkeypatch):
    def interrupted(*args: Any, **options: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(statsfile, "_write_rows", interrupted)
    with pytest.raises(KeyboardInterrupt):
        saved(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_missing_folder_is_one_line(tmp_path):
    with pytest.raises(ConfigError, match="cannot be written"):
        saved(tmp_path / "gone")


# ------------------------------------------------------------------------------------------- what is no statistics


def refused(path: Path, match: str = ".") -> str:
    with pytest.raises(DataError, match=match) as caught:
        load_statistics(path)
    assert "\n" not in caught.value.message
    assert str(path) in caught.value.message
    return caught.value.message


def test_what_is_no_statistics_file(tmp_path):
    refused(tmp_path / "gone.npz", "No such file")
    refused(tmp_path, "cannot be read")
    for name, data in {"empty": b"", "text": b"not a zip", "npy": b"\x93NUMPY\x01\x00"}.items():
        (tmp_path / name).write_bytes(data)
        refused(tmp_path / name)
    np.savez(tmp_path / "samples.npz", x=np.ones(3))
    refused(tmp_path / "samples.npz", "holds no statistics of qtool")
    np.savez(tmp_path / "header.npz", header=np.ones(3))
    refused(tmp_path / "header.npz", "holds no statistics of qtool")
    for text in (b"{", b"[]", b"{}", b"[" * 100_000, b'{"kind": NaN}', b"\xff\xfe", b'{"kind":"qtool statistic"}'):
        np.savez(tmp_path / "json.npz", header=np.frombuffer(text, np.uint8))
        refused(tmp_path / "json.npz", "holds no statistics of qtool")


def arrays_of(path: Path) -> dict[str, np.ndarray]:
    with np.load(path) as archive:
        return dict(archive)


def edited(folder: Path, edit: Callable[[dict[str, Any]], None], value: SavedStatistics | None = None) -> Path:
    """A file whose header was changed, with everything else as it was."""
    arrays = arrays_of(saved(folder, value))
    header = json.loads(arrays["header"].tobytes())
    edit(header)
    np.savez(folder / "edited.npz", **arrays | {"header": np.frombuffer(json.dumps(header).encode(), np.uint8)})
    return folder / "edited.npz"


def test_an_unchanged_header_is_fine(tmp_path):
    assert_same(load_statistics(edited(tmp_path, dict)), example())


@pytest.mark.parametrize("version", [0, 1, 3, "2", None, 2.5, [2]])
def test_another_schema_version(tmp_path, version):
    path = edited(tmp_path, lambda header: header.update(schema_version=version))
    refused(path, "has schema version .*; this qtool reads version 2")


def _set(*keys: Any) -> Callable[[dict[str, Any]], None]:
    *way, last, value = keys

    def edit(header: dict[str, Any]) -> None:
        place: Any = header
        for key in way:
            place = place[key]
        place[last] = value

    return edit


@pytest.mark.parametrize(
    "edit",
    [
        _set("samples", -1),
        _set("samples", 1.0),
        _set("samples", True),
        _set("samples", 1 << 63),
        _set("observed_samples", None),
        _set("sources", ["xy" * 32]),
        _set("sources", [1]),
        _set("sources", 3),
        _set("histogram_bits", 11),
        _set("histograms", False),
        _set("histograms", 1),
        _set("tensors", {}),
        _set("tensors", 3),
        _set("tensors", [1] * 6),
        _set("tensors", [{}] * 6),
        _set("tensors", []),
        _set("tensors", 0, "name", 3),
        _set("tensors", 1, "name", "t0/'\n"),
        _set("tensors", 0, "count", 501),
        _set("tensors", 0, "count", "500"),
        _set("tensors", 0, "nan", 1),
        _set("tensors", 0, "neg_inf", -1),
        _set("tensors", 0, "zeros", 501),
        _set("tensors", 0, "minimum", None),
        _set("tensors", 0, "minimum", 1e9),
        _set("tensors", 0, "maximum", 1),
        _set("tensors", 0, "maximum", "1"),
        _set("tensors", 0, "maximum", 1e9),
        _set("tensors", 0, "exponent", 99),
        _set("tensors", 0, "exponent", None),
        _set("tensors", 0, "exponent", 1.5),
        _set("tensors", 3, "minimum", 1.0),
        _set("tensors", 0, "sample_ranges", 0),
        _set("tensors", 0, "sample_ranges", 501),
        _set("tensors", 3, "sample_ranges", 1),
        _set("tensors", 0, "sample_min_sum", "0"),
        _set("tensors", 0, "sample_min_sum", 0),
        _set("tensors", 0, "sample_min_sum", "f" * 101),
        _set("tensors", 0, "sample_max_sum", "0x12"),
        _set("tensors", 0, "sample_max_sum", "-0"),
        _set("tensors", 3, "sample_max_sum", "1"),
        _set("model", "sha256", "0" * 64),
        _set("model", "parts", 1, 2, "0" * 64),
        _set("model", "parts", 1, 1, "V"),
        _set("model", "parts", 1, ["node"]),
        _set("model", "parts", None),
        _set("model", {}),
        _set("samples", 4),
        _set("observed_samples", 0),
        _set("sources", 0, "held", 3),
        _set("sources", 0, "files", ["0"]),
        _set("sources", 0, "files", 3),
        _set("sources", 0, "held", "9"),
        _set("sources", 0, "used", []),
        _set("sources", 0, "used", [[0, 2, 1], [2, 3, 1]]),
        _set("sources", 0, "used", [[0, 2, 1], [1, 2, 1]]),
        _set("sources", 0, "used", [[0, 3, 0]]),
        _set("sources", 0, "used", [[0, 3]]),
        _set("sources", 0, "used", [[-1, 2, 1]]),
        _set("sources", 0, "sha256", "ef" * 32),
        _set("sources", 1, "sha256", "ab" * 32),
        _set("batches", "kept", 2),
        _set("batches", "kept", 0, ["cd" * 32, 0, "2"]),
        _set("batches", "kept", 0, ["ab" * 32, 0, 2]),
        _set("batches", "kept", 0, ["cd" * 32, 2, 2]),
        _set("batches", "kept", 0, ["cd" * 32, 0, 64]),
        _set("batches", "kept", 0, ["cd" * 32, 1, 1]),
        _set("batches", "cut", ["cd" * 32, 0]),
        _set("batches", "cut", 3),
        _set("batches", "inputs", [["x", "float64"]]),
        _set("batches", "inputs", [["x", "text"]]),
        _set("batches", "inputs", [["x", "object"]]),
        _set("batches", "inputs", [["x", "finfo"]]),
        _set("batches", "inputs", [["x", "f4,f4"]]),
        _set("batches", "inputs", [["x", "float32"], ["h", "float32"]]),
        _set("batches", None),
    ],
)
def test_a_header_that_contradicts_itself(tmp_path, edit):
    refused(edited(tmp_path, edit), "is damaged")


@pytest.mark.parametrize(
    "edit",
    [
        _set("tensors", 0, "channel_axis", None),
        _set("tensors", 0, "channel_axis", 1.0),
        _set("tensors", 0, "channel_axis", 1 << 40),
        _set("tensors", 2, "channel_axis", 1),
        _set("tensors", 0, "channel_absmax", 4),
        _set("tensors", 0, "channel_absmax", None),
        _set("tensors", 0, "channel_absmax", "3"),
        _set("tensors", 1, "channel_energy", 3),
        _set("tensors", 4, "channel_energy", 1 << 62),
        _set("tensors", 0, "maximum", 0.5),
    ],
)
def test_channels_that_contradict_the_rest(tmp_path, edit):
    refused(edited(tmp_path, edit, example(statistics=with_channels())), "is damaged")


@pytest.mark.parametrize(
    ("name", "array"),
    [
        ("channel_absmax", None),
        ("channel_absmax", np.zeros(9, np.float32)),
        ("channel_absmax", np.full(9, np.nan, np.float32)),
        ("channel_absmax", np.zeros(9)),
        ("channel_energy", None),
        ("channel_energy", np.full(5, -1.0)),
        ("channel_energy", np.full(5, np.inf)),
        ("channel_energy", np.zeros((5, 1))),
        ("channel_energy", np.array([{}] * 5, object)),
    ],
)
def test_channels_that_are_missing_or_no_numbers(tmp_path, name, array):
    arrays = arrays_of(saved(tmp_path, example(statistics=with_channels())))
    arrays.pop(name)
    np.savez(tmp_path / "other.npz", **arrays | ({} if array is None else {name: array}), allow_pickle=True)
    refused(tmp_path / "other.npz")


@pytest.mark.parametrize(
    ("name", "array"),
    [
        ("histograms", None),
        ("histograms", np.zeros((6, 8192), np.int64)),
        ("histograms", np.full((6, 8192), 1 << 62)),
        ("histograms", np.zeros((6, 8191), np.int64)),
        ("histograms", np.zeros((5, 8192), np.int64)),
        ("histograms", np.zeros((6, 8192), np.int32)),
        ("histograms", np.zeros((6, 8192), ">i8")),
        ("histograms", np.array([{}, 1], object)),
        ("batch_1_0", None),
        ("batch_0_0", np.ones((2, 3), np.float64)),
        ("batch_0_0", np.array([{}, 1], object)),
        ("batch_0_0", np.zeros(2, [("a", np.float32)])),
        ("header", np.array(["{}"], object)),
    ],
)
def test_a_member_that_is_missing_or_of_another_type(tmp_path, name, array):
    arrays = arrays_of(saved(tmp_path))
    arrays.pop(name)
    np.savez(tmp_path / "other.npz", **arrays | ({} if array is None else {name: array}), allow_pickle=True)
    refused(tmp_path / "other.npz")


def test_counts_that_add_up_only_modulo_two_to_the_64(tmp_path):
    arrays = arrays_of(saved(tmp_path))
    arrays["histograms"] = arrays["histograms"].copy()
    arrays["histograms"][0, :4] += 1 << 62
    np.savez(tmp_path / "other.npz", **arrays)
    refused(tmp_path / "other.npz", "does not hold as many values")


def test_a_compressed_file_is_refused_before_it_is_inflated(tmp_path):
    arrays = arrays_of(saved(tmp_path))
    np.savez_compressed(tmp_path / "small.npz", **arrays)
    refused(tmp_path / "small.npz", "is compressed")


def test_every_truncation_is_noticed(tmp_path):
    data = saved(tmp_path).read_bytes()
    for length in [*range(0, len(data), 9973), len(data) - 1]:
        (tmp_path / "cut.npz").write_bytes(data[:length])
        refused(tmp_path / "cut.npz")


def test_a_flipped_bit_is_noticed_or_changes_nothing(tmp_path):
    """Bytes that nothing depends on exist: the time in a zip header, say."""
    data, random, noticed = saved(tmp_path).read_bytes(), np.random.default_rng(1), 0
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        ends = archive.start_dir
    places = [*random.integers(0, len(data), 60), *random.integers(0, 4000, 60), *random.integers(ends, len(data), 60)]
    for place in places:
        damaged = bytearray(data)
        damaged[place] ^= 1 << int(random.integers(0, 8))
        (tmp_path / "flipped.npz").write_bytes(damaged)
        try:
            got = load_statistics(tmp_path / "flipped.npz")
        except DataError:
            noticed += 1
        else:
            assert_same(got, example())
    assert noticed > 120


# -------------------------------------------------------------------------------------------------------- selecting


def test_select_takes_what_is_wanted_in_that_order(tmp_path):
    value = load_statistics(saved(tmp_path))
    names = list(value.statistics)
    assert list(value.select([names[2], names[0]], histograms=True)) == [names[2], names[0]]
    with pytest.raises(DataError, match="has no statistics of tensor 'z', which these settings quantize"):
        value.select([names[0], "z"], histograms=False)


def test_select_wants_histograms(tmp_path):
    value = load_statistics(saved(tmp_path, example(statistics=observed([1.0], histogram=False))))
    (name,) = value.statistics
    assert value.select([name], histograms=False)[name].maximum == 1.0
    with pytest.raises(DataError, match="has no histogram"):
        value.select([name], histograms=True)


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ([("tensor", "W", "1")], "tensor 'W' differs"),
        ([("tensor", "V", "0")], "where the model has tensor 'V', it has tensor 'W'"),
        ([("tensor", "W", "0"), ("tensor", "V", "0")], "tensor 'V' of the model is unknown to it"),
        ([], "the model has no tensor 'W'"),
    ],
)
def test_another_model_is_refused_by_name(parts, said):
    value = example(model=Fingerprint((Part("tensor", "W", "0"),)))
    value.require_model(Fingerprint((Part("tensor", "W", "0"),)))
    with pytest.raises(DataError, match=f"belongs to another model: {said}"):
        value.require_model(Fingerprint(tuple(Part(*part) for part in parts)))
