import hashlib

import ml_dtypes
import numpy as np
import pytest

from qtool.calibrate.samples import Samples, open_samples, random_samples
from qtool.errors import ConfigError, DataError
from qtool.runtime import TensorInfo


def info(name, shape, dtype="float32"):
    return TensorInfo(name, np.dtype(dtype), tuple(shape))


X = info("x", ["N", 4])
ROWS = np.arange(40, dtype=np.float32).reshape(10, 4)


def forms(tmp_path, **arrays):
    """The same data in every form that has a sample axis."""
    np.savez(tmp_path / "a.npz", **arrays)
    np.savez_compressed(tmp_path / "b.npz", **arrays)
    return {"stored": tmp_path / "a.npz", "deflated": str(tmp_path / "b.npz"), "mapping": arrays}


def shapes(samples: Samples, size=None, name="x"):
    return [feeds[name].shape for feeds in samples.batches(size)]


def together(samples: Samples, size=None, name="x"):
    return np.concatenate([feeds[name] for feeds in samples.batches(size)])


# ------------------------------------------------------------------------------------------------------------ batches


@pytest.mark.parametrize("form", ["stored", "deflated", "mapping"])
@pytest.mark.parametrize("size", [None, 1, 3, 10, 64])
def test_all_samples_in_order_whatever_the_batch(tmp_path, form, size):
    samples = open_samples(forms(tmp_path, x=ROWS)[form], [X])
    assert (samples.count, samples.names, samples.notes, samples.batchable) == (10, ("x",), (), True)
    for _ in range(2):  # passes can be repeated
        np.testing.assert_array_equal(together(samples, size), ROWS)
    step = size or 1
    assert shapes(samples, size) == [(min(step, 10 - i), 4) for i in range(0, 10, step)]
    assert [rows for rows, _ in samples.counted_batches(size)] == [s[0] for s in shapes(samples, size)]


def test_two_passes_at_once_do_not_disturb_each_other(tmp_path):
    samples = open_samples(forms(tmp_path, x=np.asfortranarray(ROWS))["deflated"], [X])
    for one, two in zip(samples.batches(3), samples.batches(3), strict=True):
        np.testing.assert_array_equal(one["x"], two["x"])


def test_several_files_follow_each_other_and_share_batches(tmp_path):
    np.savez(tmp_path / "a.npz", x=ROWS[:3], y=np.arange(3))
    np.savez(tmp_path / "b.npz", x=ROWS[3:], y=np.arange(3, 10))
    samples = open_samples([tmp_path / "a.npz", str(tmp_path / "b.npz")], [X], labels=["y"])
    assert samples.count == 10
    assert shapes(samples, 4) == [(4, 4), (4, 4), (2, 4)]
    np.testing.assert_array_equal(together(samples, 4), ROWS)
    np.testing.assert_array_equal(samples.labels("y"), np.arange(10))
    assert [s.path for s in samples.sources] == [str(tmp_path / "a.npz"), str(tmp_path / "b.npz")]


def test_a_fixed_batch_is_kept_and_the_rest_is_left_out_with_a_note(tmp_path):
    fixed = info("x", [4, 4])
    for data in (
        *forms(tmp_path, x=ROWS, y=np.arange(10)).values(),
        [{"x": row, "y": i} for i, row in enumerate(ROWS)],
    ):
        samples = open_samples(data, [fixed], labels=["y"])
        assert samples.count == 8
        assert shapes(samples, 1) == shapes(samples, 64) == [(4, 4), (4, 4)]
        assert samples.notes == ("2 samples were left out: the model's batch size is fixed at 4.",)
        assert not samples.batchable
        np.testing.assert_array_equal(samples.labels("y"), np.arange(8))
    with pytest.raises(DataError, match="Sample data holds 3 samples; the model's batch size is fixed at 4"):
        open_samples({"x": ROWS[:3]}, [fixed])


def test_samples_on_an_extra_axis_are_fed_one_by_one(tmp_path):
    inputs = [info("input", [None, None]), info("state", [2, None, 3]), info("sr", [], "int64")]
    arrays = {
        "input": np.arange(20, dtype=np.float32).reshape(5, 1, 4),
        "state": np.arange(30, dtype=np.float32).reshape(5, 2, 1, 3),
        "sr": np.full(5, 16000),
    }
    for data in forms(tmp_path, **arrays).values():
        samples = open_samples(data, inputs)
        assert (samples.count, samples.batchable) == (5, False)
        got = list(samples.batches(8))
        assert len(got) == 5
        for i, feeds in enumerate(got):
            assert list(feeds) == ["input", "state", "sr"]
            assert feeds["sr"].shape == ()
            for name in arrays:
                np.testing.assert_array_equal(feeds[name], arrays[name][i])


def test_a_scalar_for_all_samples(tmp_path):
    inputs = [X, info("sr", [], "int64")]
    for data in forms(tmp_path, x=ROWS, sr=np.int64(8)).values():
        got = list(open_samples(data, inputs).batches(4))
        assert [(feeds["x"].shape, int(feeds["sr"])) for feeds in got] == [((1, 4), 8)] * 10


def test_empty_dimensions_of_open_size_are_fine():
    past = info("past", ["N", 2, "p", 3])
    samples = open_samples({"x": ROWS, "past": np.zeros((10, 2, 0, 3), np.float32)}, [X, past])
    assert [f["past"].shape for f in samples.batches(5)] == [(5, 2, 0, 3)] * 2


def test_empty_dimensions_from_a_file(tmp_path):
    np.savez(tmp_path / "a.npz", x=ROWS, past=np.zeros((10, 2, 0, 3), np.float32))
    samples = open_samples(tmp_path / "a.npz", [X, info("past", ["N", 2, "p", 3])])
    assert [f["past"].shape for f in samples.batches(4)] == [(4, 2, 0, 3), (4, 2, 0, 3), (2, 2, 0, 3)]


# ---------------------------------------------------------------------------------------------------------- iterables

SEQ = info("ids", ["N", "T"], "int64")


def test_ragged_items_share_a_batch_only_with_equals():
    lengths = [3, 3, 3, 5, 5, 3]
    items = [{"ids": np.full((1, n), i)} for i, n in enumerate(lengths)]
    samples = open_samples(items, [SEQ])
    assert samples.count == 6
    assert shapes(samples, 2, "ids") == [(2, 3), (1, 3), (2, 5), (1, 3)]
    assert shapes(samples, None, "ids") == [(1, n) for n in lengths]
    assert [int(f["ids"][j, 0]) for f in samples.batches(4) for j in range(len(f["ids"]))] == list(range(6))


def test_items_may_leave_out_the_batch_axis():
    samples = open_samples(({"x": row} for row in ROWS), [X])
    np.testing.assert_array_equal(together(samples, 4), ROWS)
    assert samples.notes == ("The iterator of samples was read into memory (10 samples).",)
    np.testing.assert_array_equal(together(samples, 4), ROWS)


def test_items_with_a_batch_are_fed_as_they_are():
    samples = open_samples(
        [{"x": ROWS[:3], "y": np.arange(3)}, {"x": ROWS[3:], "y": np.arange(3, 10)}], [X], labels=["y"]
    )
    assert samples.count == 10
    assert shapes(samples, 5) == [(3, 4), (7, 4)]
    np.testing.assert_array_equal(samples.labels("y"), np.arange(10))


def test_a_lazy_iterable_is_walked_again_and_watched():
    class Lazy:
        passes = 0
        short = 10

        def __iter__(self):
            self.passes += 1
            return iter([{"x": row} for row in ROWS[: self.short]])

    lazy = Lazy()
    samples = open_samples(lazy, [X])
    assert (lazy.passes, samples.notes) == (1, ())
    np.testing.assert_array_equal(together(samples, 4), ROWS)
    assert lazy.passes == 2
    lazy.short = 5
    with pytest.raises(DataError, match="yields 5 samples in a later pass; the first pass had 10"):
        together(samples)


def test_stateful_items_are_fed_one_by_one():
    state = info("h", [2, None, 3])
    items = [{"x": ROWS[:1], "h": np.full((2, 1, 3), i, np.float32)} for i in range(4)]
    samples = open_samples(items, [X, state])
    assert not samples.batchable
    assert shapes(samples, 8, "h") == [(2, 1, 3)] * 4
    with pytest.raises(DataError, match=r"^Sample 0: input 'h' has shape \[1, 3\]; the model expects \[2, \?, 3\]"):
        open_samples([{"x": ROWS[:1], "h": np.zeros((1, 3), np.float32)}], [X, state])


def test_item_labels_per_sample():
    items = [{"x": row, "y": np.array([i, -i])} for i, row in enumerate(ROWS)]
    np.testing.assert_array_equal(open_samples(items, [X], labels=["y"]).labels("y"), [[i, -i] for i in range(10)])
    with pytest.raises(DataError, match=r"^Sample 1 has no 'y' for the labels; given: x\.$"):
        open_samples([{"x": ROWS[0], "y": 1}, {"x": ROWS[1]}], [X], labels=["y"])


# -------------------------------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize("form", ["stored", "mapping"])
@pytest.mark.parametrize(
    ("inputs", "arrays", "message"),
    [
        (
            [info("x", [1, 6, 3])],
            {"x": np.zeros((10, 5, 3), np.float32)},
            "input 'x' has shape [10, 5, 3]; the model expects [N, 6, 3]: dimension 1 is 5, expected 6.",
        ),
        (
            [info("x", ["batch", 3, "h", None])],
            {"x": np.zeros((2, 1, 8, 8), np.float32)},
            "input 'x' has shape [2, 1, 8, 8]; the model expects [N, 3, h, ?]: dimension 1 is 1, expected 3.",
        ),
        (
            [info("x", ["N", 4])],
            {"x": np.zeros(4, np.float32)},
            "input 'x' has shape [4]; the model expects [N, 4]: 1 dimensions, expected 2.",
        ),
        (
            [info("x", [])],
            {"x": np.zeros((4, 2), np.float32)},
            "input 'x' has shape [4, 2]; the model expects [N]: 2 dimensions, expected 1.",
        ),
        (
            [info("x", ["N", 4]), info("y", ["N", 2])],
            {"x": ROWS, "labels": np.zeros(10)},
            " has no array for input 'y'; required: x, y; given: x, labels.",
        ),
        (
            [info("x", ["N", 4]), info("y", ["N", 4])],
            {"x": ROWS, "y": ROWS[:7]},
            "input 'x' has 10 samples, input 'y' has 7; expected the same number for every input.",
        ),
        ([X], {"x": ROWS[:0]}, " is empty: input 'x' has shape [0, 4], which is 0 samples."),
        ([X], {"x": ROWS.astype(np.int64)}, "input 'x' is int64; the model expects float32."),
        ([info("x", ["N", 4], "int64")], {"x": ROWS}, "input 'x' is float32; the model expects int64."),
        ([X], {"x": ROWS.astype(np.uint8)}, "input 'x' is uint8; the model expects float32."),
        (
            [info("x", [0, 4])],
            {"x": ROWS},
            "input 'x' has shape [0, 4] in the model, which holds no sample.",
        ),
        (
            [info("x", [2, 4]), info("y", [1, 4])],
            {"x": ROWS, "y": ROWS},
            "the model's inputs fix different batch sizes ('x' 2, 'y' 1).",
        ),
    ],
)
def test_what_does_not_fit_is_refused(tmp_path, form, inputs, arrays, message):
    data = forms(tmp_path, **arrays)[form]
    subject = "Sample data" if form == "mapping" else f"Sample data '{data}'"
    with pytest.raises(DataError) as caught:
        open_samples(data, inputs)
    assert caught.value.message == subject + (message if message.startswith(" ") else f": {message}")


def test_items_that_do_not_fit_are_refused():
    def refused(items, inputs=(X,)):
        with pytest.raises(DataError) as caught:
            open_samples(items, inputs)
        return caught.value.message

    assert refused([]) == "Sample data is empty: the iterable yields no samples."
    assert refused([ROWS]) == "Sample 0 is ndarray; expected a mapping of arrays."
    assert refused([{"x": ROWS[0]}, {"z": 1}]) == "Sample 1 has no array for input 'x'; required: x; given: z."
    assert refused([{"x": np.zeros(5, np.float32)}]) == (
        "Sample 0: input 'x' has shape [5]; the model expects [4]: dimension 0 is 5, expected 4."
    )
    assert refused([{"x": [[1, 2], [3]]}]).startswith("Sample 0: 'x' is no array: ")
    assert refused([{"x": np.array([None])}]) == "Sample 0: 'x' holds Python objects; expected plain numbers."


@pytest.mark.parametrize("data", [ROWS, 3, None, b"a.npz"])
def test_other_kinds_of_data_are_refused(data):
    with pytest.raises(DataError, match=r"^Sample data is \w+\.$") as caught:
        open_samples(data, [X])
    assert caught.value.hint.startswith("Supported: an .npz file")


def test_paths_mixed_with_something_else_are_refused(tmp_path):
    with pytest.raises(DataError, match="mixes file paths with something else"):
        open_samples(["a.npz", {"x": ROWS}], [X])


def test_batch_sizes_below_one_are_refused():
    with pytest.raises(ConfigError, match="Batch size is 0"):
        open_samples({"x": ROWS}, [X]).batches(0)


# --------------------------------------------------------------------------------------------------- casts, notes, hash


@pytest.mark.parametrize(
    ("given_dtype", "wanted", "note"),
    [
        ("float64", "float32", "Input 'x': float64 cast to float32."),
        ("float16", "float32", "Input 'x': float16 cast to float32."),
        ("float32", "float16", "Input 'x': float32 cast to float16."),
        ("float32", ml_dtypes.bfloat16, "Input 'x': float32 cast to bfloat16."),
        ("int32", "int64", "Input 'x': int32 cast to int64."),
        ("int64", "int32", "Input 'x': int64 cast to int32."),
        ("bool", "int64", "Input 'x': bool cast to int64."),
        ("uint64", "uint8", "Input 'x': uint64 cast to uint8."),
        (">f4", "float32", None),
        ("float32", "float32", None),
    ],
)
def test_casts_that_keep_the_values(tmp_path, given_dtype, wanted, note):
    array = (ROWS % 2).astype(given_dtype)
    for data in (*forms(tmp_path, x=array).values(), [{"x": row} for row in array]):
        samples = open_samples(data, [info("x", ["N", 4], wanted)])
        assert samples.notes == ((note,) if note else ())
        got = together(samples, 3)
        assert got.dtype == np.dtype(wanted)
        np.testing.assert_array_equal(got.astype(np.float64), ROWS % 2)


@pytest.mark.parametrize(
    ("array", "wanted"),
    [
        (np.array([[1 << 40]]), "int32"),
        (np.array([[-1]]), "uint64"),
        (np.array([[2**63]], np.uint64), "int64"),
        (np.array([[2]]), "bool"),
        (np.array([[1e300]]), "float32"),
        (np.array([[70000.0]], np.float32), "float16"),
    ],
)
def test_casts_that_lose_the_values(array, wanted):
    samples = open_samples({"x": array}, [info("x", ["N", 1], wanted)])
    with pytest.raises(
        DataError, match=rf"^Sample data: input 'x' has {array.dtype.name} values in .* not fit {wanted}\.$"
    ):
        next(samples.batches())


def test_extra_arrays_are_ignored_with_a_note(tmp_path):
    np.savez(tmp_path / "a.npz", x=ROWS, labels=np.zeros(10), more=np.array(["a", "b"]))
    samples = open_samples(tmp_path / "a.npz", [X])
    assert samples.notes == (
        f"Sample data '{tmp_path / 'a.npz'}': ignored 'labels', 'more': not among the model's inputs.",
    )
    assert open_samples(tmp_path / "a.npz", [X], labels=["labels"]).notes[0].count("'labels'") == 0


def test_labels(tmp_path):
    np.savez(tmp_path / "a.npz", x=ROWS, y=np.arange(10), text=np.array(list("abcdefghij")), short=np.arange(3))
    samples = open_samples(tmp_path / "a.npz", [X], labels=["y", "text"])
    np.testing.assert_array_equal(samples.labels("y"), np.arange(10))
    assert samples.labels("text").tolist() == list("abcdefghij")
    with pytest.raises(DataError, match=r"has no array 'z' for the labels; given: x, y, text, short\.$"):
        open_samples(tmp_path / "a.npz", [X], labels=["z"])
    with pytest.raises(DataError, match=r"labels 'short' have shape \[3\]; expected one entry for each of 10 samples"):
        open_samples(tmp_path / "a.npz", [X], labels=["short"])


def test_files_are_hashed_when_asked(tmp_path):
    path = tmp_path / "a.npz"
    np.savez(path, x=ROWS)
    (source,) = open_samples(path, [X]).sources
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    assert source.to_dict() == {"path": str(path), "sha256": digest}
    path.unlink()
    assert source.sha256 == digest  # once
    (gone,) = open_samples({"x": ROWS}, [X]).sources
    (other,) = open_samples({"x": ROWS + 1}, [X]).sources
    assert gone.path is None
    assert gone.sha256 != other.sha256
    assert gone.sha256 == open_samples({"x": ROWS.copy(), "more": ROWS}, [X]).sources[0].sha256


def test_loaded_npz_files_are_mappings(tmp_path):
    np.savez(tmp_path / "a.npz", x=ROWS, bad=np.array([None]))
    with np.load(tmp_path / "a.npz") as loaded:
        samples = open_samples(loaded, [X])
        np.testing.assert_array_equal(together(samples, 4), ROWS)
        with pytest.raises(DataError, match="'bad' is no array: Object arrays cannot be loaded"):
            open_samples(loaded, [info("bad", ["N"])])


def test_arrays_of_the_caller_are_not_changed_and_reach_the_engine_contiguous():
    array = np.asfortranarray(ROWS)
    before = array.copy()
    for feeds in open_samples({"x": array}, [X]).batches(3):
        assert feeds["x"].flags.c_contiguous
    np.testing.assert_array_equal(array, before)


# -------------------------------------------------------------------------------------------------------------- random


def test_random_samples_depend_on_seed_and_index_alone():
    inputs = [info("x", ["N", 3]), info("ids", ["N", 2], "int64"), info("m", ["N", 2], "bool")]
    samples = random_samples(inputs, 5, seed=7)
    assert samples.count == 5
    np.testing.assert_array_equal(together(samples, 2), together(samples, None))
    np.testing.assert_array_equal(together(random_samples(inputs, 3, seed=7)), together(samples)[:3])
    assert not np.array_equal(together(random_samples(inputs, 5, seed=8)), together(samples))
    assert set(together(samples, name="ids").ravel().tolist()) <= {0, 1}
    assert samples.notes == ("5 random samples (seed 7) instead of data: ranges say nothing about real inputs.",)


def test_random_samples_of_a_fixed_batch_are_whole_batches():
    samples = random_samples([info("x", [4, 3])], 5)
    assert (samples.count, shapes(samples)) == (8, [(4, 3), (4, 3)])


def test_random_samples_that_cannot_be_made_up():
    with pytest.raises(DataError, match=r"^Input 'ids': dimension 1 has no fixed size"):
        random_samples([SEQ], 3)
    with pytest.raises(DataError, match="Input 's' is text"):
        random_samples([info("s", ["N"], "str")], 3)
    with pytest.raises(ConfigError, match="Number of random samples is 0"):
        random_samples([X], 0)
