"""What is given as data: files, folders, globs and pairs of every kind."""

import hashlib
from pathlib import Path

import numpy as np
import pytest

from qtool.calibrate.readers import files_of, readers, supported
from qtool.calibrate.samples import open_samples
from qtool.errors import DataError
from tests.calibrate.readers.support import info, save_npy, save_sets, tensor

X = info("x", ["N", 4])
PAIR = [info("ids", ["N", 3], "int64"), info("mask", ["N", 3], "int64")]
ROWS = np.arange(40, dtype=np.float32).reshape(10, 4)
IDS = np.arange(30).reshape(10, 3)


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def values(data, inputs=(X,), name="x", size=4, **options):
    samples = open_samples(data, inputs, **options)
    return np.concatenate([feeds[name] for feeds in samples.batches(size)])


def refused(data, inputs=(X,), **options):
    with pytest.raises(DataError) as caught:
        list(open_samples(data, inputs, **options).batches())
    assert "\n" not in caught.value.message
    return caught.value.message


def sha(path):
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


def test_each_kind_has_a_reader():
    assert [reader.suffix for reader in readers()] == [".npy", ".npz", ".pb"]
    assert supported() == (
        "Supported: an .npz file (numpy.savez), .npy files named after the inputs or given as NAME=FILE.npy, a folder "
        "with test_data_set_0/input_0.pb as the ONNX tests have it, folders and globs of those, a mapping of arrays, "
        "or an iterable of mappings (one per sample)."
    )


# ------------------------------------------------------------------------------------------------------------------ npz


def test_folders_and_globs_of_npz_are_sorted_by_name(here):
    (here / "calib").mkdir()
    for name, rows in (("b", ROWS[3:7]), ("a", ROWS[:3]), ("c", ROWS[7:])):
        np.savez(here / "calib" / f"{name}.npz", x=rows, labels=np.zeros(len(rows)))
    (here / "calib" / ".hidden.npz").write_bytes(b"")
    (here / "calib" / "README.md").write_text("read me")
    for data in ("calib", Path("calib/"), "calib/*.npz", f"{here}/cal*/[abc].npz", ["calib/a.npz", "calib/[bc].npz"]):
        np.testing.assert_array_equal(values(data), ROWS)
    samples = open_samples("calib", [X])
    assert samples.notes == (
        "Sample data 'calib': ignored 'README.md': no .npz files.",
        "Sample data 'calib/a.npz' and 2 more: ignored 'labels': not among the model's inputs.",
    )
    assert [(s.path, s.sha256) for s in samples.sources] == [
        (f"calib/{name}.npz", sha(f"calib/{name}.npz")) for name in "abc"
    ]
    assert files_of("calib", Path("gone.npz"), "nothing*") == [
        Path(p) for p in ("calib/a.npz", "calib/b.npz", "calib/c.npz", "gone.npz", "nothing*")
    ]


def test_a_name_with_the_characters_of_a_glob_is_a_name(here):
    np.savez("a[1]=b.npz", x=ROWS)
    np.savez("a1=b.npz", x=ROWS + 1)
    np.testing.assert_array_equal(values("a[1]=b.npz"), ROWS)


def test_a_file_of_no_suffix_is_known_by_its_first_bytes(here):
    np.savez("a.npz", x=ROWS)
    np.save("x.npy", ROWS)
    for name in ("a.npz", "x.npy"):
        Path(name).rename(name[0])
        np.testing.assert_array_equal(values(name[0]), ROWS)


# ------------------------------------------------------------------------------------------------------------------ npy


def test_a_folder_of_npy_files_named_after_the_inputs(here):
    save_npy(here / "calib", ids=IDS, mask=IDS % 2, labels=np.arange(10))
    forms = (
        "calib",
        "calib/*.npy",
        ["calib/mask.npy", "calib/ids.npy"],
        ["ids=calib/ids.npy", "mask=calib/mask.npy"],
        {"ids": Path("calib/ids.npy"), "mask": Path("calib/mask.npy")},
    )
    for data in forms:
        for name, expected in (("ids", IDS), ("mask", IDS % 2)):
            np.testing.assert_array_equal(values(data, PAIR, name), expected)
        samples = open_samples(data, PAIR, shuffle_seed=1)
        assert [(s.path, s.sha256) for s in samples.sources] == [
            (f"calib/{name}.npy", sha(f"calib/{name}.npy")) for name in ("ids", "mask")
        ]
        for feeds in samples.batches(3):
            np.testing.assert_array_equal(feeds["mask"], feeds["ids"] % 2)
        assert {"calib/ids.npy", "calib/mask.npy"} <= {*map(str, files_of(data))}
    samples = open_samples("calib", PAIR, labels=["labels"])
    assert samples.notes == ()
    assert samples.labels("labels").tolist() == list(range(10))
    assert len(samples.sources) == 3
    assert open_samples("calib", PAIR).notes == (
        "Sample data 'calib': ignored 'labels': not among the model's inputs.",
    )


def test_npy_files_of_a_model_with_one_input_follow_each_other(here):
    save_npy(here / "calib", b=ROWS[6:], a=ROWS[:6])
    for data in ("calib", "calib/*.npy", ["calib/a.npy", "calib/b.npy"]):
        np.testing.assert_array_equal(values(data), ROWS)
    np.testing.assert_array_equal(values("calib/a.npy"), ROWS[:6])
    save_npy(here / "calib", x=ROWS[2:5])  # one is named after the input: the others are something else
    assert open_samples("calib", [X]).notes == ("Sample data 'calib': ignored 'a', 'b': not among the model's inputs.",)
    np.testing.assert_array_equal(values("calib"), ROWS[2:5])


@pytest.mark.parametrize("form", ["C", "F"])
def test_npy_files_of_any_order_and_byte_order(here, form):
    np.save("x.npy", np.asarray(ROWS.reshape(10, 2, 2).astype(">f4"), order=form))
    inputs = [info("x", ["N", 2, 2])]
    np.testing.assert_array_equal(values("x.npy", inputs), ROWS.reshape(10, 2, 2))
    shuffled = values("x.npy", inputs, shuffle_seed=2)
    np.testing.assert_array_equal(shuffled, values({"x": ROWS.reshape(10, 2, 2)}, inputs, shuffle_seed=2))
    np.testing.assert_array_equal(values("x.npy", inputs, limit=3), ROWS.reshape(10, 2, 2)[:3])


def test_what_is_wrong_with_npy_files(here):
    save_npy(here / "calib", ids=IDS, mask=IDS[:7])
    assert refused("calib", PAIR) == (
        "Sample data 'calib': input 'ids' has 10 samples, input 'mask' has 7; expected the same number for every input."
    )
    assert refused("calib/ids.npy", PAIR) == (
        "Sample data 'calib/ids.npy' has no array for input 'mask'; required: ids, mask; given: ids."
    )
    assert refused(["ids=calib/ids.npy", "ids=calib/mask.npy"], PAIR) == (
        "Input 'ids' is given twice: 'calib/ids.npy' and 'calib/mask.npy'."
    )
    assert refused(["ids=calib/ids.npy", "mask=gone.npy"], PAIR) == (
        "Sample data 'gone.npy' cannot be read: No such file or directory."
    )
    np.savez("a.npz", ids=IDS)
    assert refused({"ids": Path("a.npz")}, PAIR) == (
        "Sample data 'a.npz' is given for input 'ids'; only .npy files can be."
    )
    save_npy(here / "more", ids=IDS)
    assert "are both named 'ids'; expected one file for each input" in refused(["calib/ids.npy", "more/ids.npy"], PAIR)
    np.save("o.npy", np.array([{}], object), allow_pickle=True)
    assert refused("o.npy") == "Sample data 'o.npy' holds Python objects (a pickle), which is never loaded."
    np.save("s.npy", np.zeros(3, [("a", "f4")]))
    assert refused("s.npy") == "Sample data 's.npy' is a structured array; expected plain numbers."
    np.save("d.npy", ROWS.astype(np.int64))
    assert refused("d.npy") == "Sample data 'd.npy': input 'x' is int64; the model expects float32."
    np.save("r.npy", ROWS[0])
    assert refused("r.npy") == (
        "Sample data 'r.npy': input 'x' has shape [4]; the model expects [N, 4]: 1 dimensions, expected 2."
    )
    np.save("e.npy", ROWS[:0])
    assert refused("e.npy") == "Sample data 'e.npy' is empty: input 'x' has shape [0, 4], which is 0 samples."
    whole = Path("d.npy").read_bytes()
    for number, content in enumerate((whole[:-1], whole + b"\0")):
        Path(f"{number}.npy").write_bytes(content)
        assert "is damaged: its header describes 320 bytes, which the file does not hold" in refused(f"{number}.npy")
    Path("t.npy").write_text("no array")
    assert refused("t.npy") == "Sample data 't.npy' is not a .npy file."


def test_a_fortran_file_of_very_many_samples_is_refused(here, monkeypatch):
    from qtool.calibrate import npy

    monkeypatch.setattr(npy, "_MAX_COLUMN_BYTES", 39)
    np.save("x.npy", np.asfortranarray(ROWS))
    assert refused("x.npy") == "Sample data 'x.npy' is in Fortran order, in which 10 samples are interleaved."


# ------------------------------------------------------------------------------------------------------------------- pb


@pytest.mark.parametrize("named", [True, False])
def test_onnx_test_data(here, named):
    save_sets(here / "test_bert", named=named, ids=IDS[:, None], mask=IDS[:, None] % 2)
    (here / "test_bert" / "model.onnx").write_bytes(b"a model")
    inputs = [info("ids", [1, None, 3], "int64"), info("mask", [1, None, 3], "int64")]
    for data in ("test_bert", "test_bert/test_data_set_*"):
        samples = open_samples(data, inputs)
        assert (samples.count, samples.batchable, samples.notes) == (10, False, ())
        np.testing.assert_array_equal(values(data, inputs, "mask"), (IDS % 2)[:, None])
    np.testing.assert_array_equal(values("test_bert/test_data_set_7", inputs, "ids"), IDS[7][None, None])
    samples = open_samples("test_bert", inputs, limit=2, shuffle_seed=0)
    assert [(s.path, s.sha256) for s in samples.sources] == [
        (p, sha(p)) for s in (2, 3) for p in (f"test_bert/test_data_set_{s}/input_{i}.pb" for i in (0, 1))
    ]
    assert len(files_of("test_bert")) == 20


def test_data_sets_are_in_the_order_of_their_numbers(here):
    save_sets(here / "t", x=np.arange(12, dtype=np.float32)[:, None])
    assert values("t", [info("x", ["N", 1])])[:, 0].tolist() == list(range(12))


def test_tensors_are_fed_as_they_are(here):
    folder = here / "test_data_set_0"
    folder.mkdir()
    (folder / "input_0.pb").write_bytes(tensor(ROWS).SerializeToString())
    samples = open_samples("test_data_set_0", [X])
    assert samples.count == 1
    assert [feeds["x"].shape for feeds in samples.batches(3)] == [(10, 4)]
    (folder / "input_0.pb").write_bytes(tensor(ROWS[0]).SerializeToString())
    assert refused("test_data_set_0") == (
        "Sample data 'test_data_set_0': input 'x' has shape [4]; the model expects [N, 4]: 1 dimensions, expected 2."
    )
    (folder / "input_0.pb").write_bytes(tensor(np.array(["a", "ß"])).SerializeToString())
    (text,) = open_samples("test_data_set_0", [info("x", [None], "U")]).batches()
    assert text["x"].tolist() == ["a", "ß"]


def test_what_is_wrong_with_test_data(here):
    folder = here / "test_data_set_0"
    folder.mkdir()

    def wrong(content, inputs=(X,), number=0, **options):
        (folder / f"input_{number}.pb").write_bytes(
            content if isinstance(content, bytes) else content.SerializeToString()
        )
        return refused("test_data_set_0", inputs, **options)

    start = "Sample data 'test_data_set_0/input_0.pb'"
    assert wrong(tensor(ROWS, "z")) == (
        "Sample data 'test_data_set_0' has no array for input 'x'; required: x; given: z."
    )
    assert wrong(tensor(ROWS.astype(np.int64))) == (
        "Sample data 'test_data_set_0': input 'x' is int64; the model expects float32."
    )
    assert wrong(b"") == f"{start} is no serialized ONNX tensor: it has no element type."
    assert wrong(b"\xff\xff\xff") == f"{start} is damaged, or no serialized ONNX tensor."
    outside = tensor(ROWS)
    outside.ClearField("raw_data")
    outside.data_location = outside.EXTERNAL
    outside.external_data.add(key="location", value="../../../etc/passwd")
    assert wrong(outside) == f"{start} keeps its values in another file, which is never opened."
    huge = tensor(ROWS)
    huge.dims[:] = [1 << 40, 1 << 20]
    assert wrong(huge).startswith(f"{start} is damaged: ")
    huge.data_type = 99
    assert wrong(huge) == f"{start} is damaged: there is no element type 99."
    huge.data_type = 1
    huge.dims[:] = [-1, 4]
    assert wrong(huge) == f"{start} is damaged: its shape is [-1, 4]."
    (folder / "input_0.pb").write_bytes(tensor(ROWS, "x").SerializeToString())
    assert refused("test_data_set_0", labels=["y"]) == (
        "Sample data 'test_data_set_0' has no array 'y' for the labels: a folder of tensors holds inputs only."
    )
    assert refused("test_data_set_0/input_0.pb") == (f"{start} is a file of ONNX test data sets; expected the folder.")
    assert wrong(tensor(ROWS, "x"), number=1) == (
        "Sample data 'test_data_set_0': 'input_0.pb' and 'input_1.pb' are both for input 'x'; expected one tensor for "
        "each input."
    )
    assert "have the same number" in wrong(tensor(ROWS, "x"), number="01")


# ------------------------------------------------------------------------------------------------------------ what else


def test_folders_of_nothing_and_of_too_much(here):
    (here / "none").mkdir()
    assert refused("none") == "Sample data 'none' holds no samples."
    assert refused("") == "Sample data '' is an empty path; expected a file or a folder."  # not the current folder
    (here / "none" / "a.txt").write_text("")
    (here / "none" / "sub").mkdir()
    assert refused("none") == "Sample data 'none' holds no samples: found 'a.txt', 'sub'."
    (here / "none" / "test_data_set_0").mkdir()
    assert refused("none") == "Sample data 'none/test_data_set_0' is empty: there is no input_0.pb in it."
    save_npy(here / "both", x=ROWS)
    np.savez("both/a.npz", x=ROWS)
    assert refused("both") == "Sample data 'both' holds .npy files and .npz files; expected files of one kind."
    assert refused("both/*") == "Sample data 'both/*' holds .npy files and .npz files; expected files of one kind."
    assert refused("both/*.txt") == "Sample data 'both/*.txt' matches no file."
    save_sets(here / "both", x=ROWS)
    assert refused("both") == (
        "Sample data 'both' holds .npy files and .npz files and ONNX test data sets; expected files of one kind."
    )
    (here / "a.txt").write_text("hello")
    assert refused("a.txt") == "Sample data 'a.txt' is of no kind that holds samples."
    assert refused("gone.txt") == "Sample data 'gone.txt' cannot be read: No such file or directory."
    assert refused("/dev/null") == (
        "Sample data '/dev/null' is a device or a pipe; expected a file, which can be read several times."
    )
    assert refused("a\0b.npz").startswith("Sample data 'a\0b.npz' cannot be read: ")


def test_kinds_that_are_given_one_by_one_follow_each_other(here):
    np.savez("a.npz", x=ROWS[:2])
    save_npy(here / "more", a=ROWS[2:3], b=ROWS[3:5])
    save_sets(here / "sets", x=ROWS[5:])
    np.testing.assert_array_equal(values(["a.npz", "more", Path("sets")]), ROWS)
    np.testing.assert_array_equal(values(["a.npz", "x=more/b.npy", Path("sets")])[2:4], ROWS[3:5])
