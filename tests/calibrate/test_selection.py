"""Which samples are fed, and in which order."""

from itertools import chain, pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qtool.calibrate.samples import open_samples
from qtool.calibrate.selection import Run, Selection
from qtool.errors import ConfigError, DataError
from qtool.runtime import TensorInfo

X = TensorInfo("x", np.dtype("float32"), ("N", 2))
SEQ = TensorInfo("x", np.dtype("float32"), ("N", "T"))
COUNT = 23
ROWS = np.arange(2 * COUNT, dtype=np.float32).reshape(COUNT, 2)


class Lazy:
    """An iterable that can only be walked."""

    def __init__(self, items):
        self.items = items

    def __iter__(self):
        return iter(self.items)


def npz(folder, rows, compressed, cuts=(0, 9, 9 + 1, COUNT)):
    paths = []
    for number, (start, stop) in enumerate(pairwise(cuts)):
        paths.append(folder / f"{number}{compressed}.npz")
        (np.savez_compressed if compressed else np.savez)(paths[-1], x=rows[start:stop], y=np.arange(start, stop))
    return paths


@pytest.fixture(scope="module")
def forms(tmp_path_factory):
    """The same samples in every form."""
    folder = tmp_path_factory.mktemp("forms")
    fortran = folder / "f.npz"
    np.savez_compressed(fortran, x=np.asfortranarray(ROWS), y=np.arange(COUNT))
    return {
        "stored": npz(folder, ROWS, False),
        "deflated": npz(folder, ROWS, True),
        "fortran": fortran,
        "mapping": {"x": ROWS, "y": np.arange(COUNT)},
        "list": [{"x": row, "y": i} for i, row in enumerate(ROWS)],
        "lazy": Lazy([{"x": row, "y": i} for i, row in enumerate(ROWS)]),
    }


FORMS = ["stored", "deflated", "fortran", "mapping", "list", "lazy"]


def order(samples, size=None):
    """The numbers of the samples as they are fed."""
    fed = [int(row[0]) // 2 for feeds in samples.batches(size) for row in feeds["x"]]
    assert len(fed) == samples.count
    return fed


@pytest.mark.parametrize("form", FORMS)
@settings(max_examples=25, deadline=None)
@given(start=st.integers(0, 30), length=st.none() | st.integers(0, 30), size=st.sampled_from([None, 1, 4, 50]))
def test_a_slice_is_that_of_a_list(forms, form, start, length, size):
    stop = None if length is None else start + length
    expected = list(range(COUNT))[start:stop]
    whole = open_samples(forms[form], [X], labels=["y"])
    part = whole.slice(start, stop)
    assert part.count == len(expected)
    assert order(part, size) == expected
    assert order(part, size) == expected
    assert part.labels("y").tolist() == expected
    assert order(whole, size) == list(range(COUNT))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("limit", [None, 1, 10, 23])
def test_a_shuffle_depends_on_seed_and_count_alone(forms, form, limit):
    expected = order(open_samples({"x": ROWS}, [X], shuffle_seed=5))
    assert sorted(expected) == list(range(COUNT))
    assert expected != list(range(COUNT))
    samples = open_samples(forms[form], [X], labels=["y"], shuffle_seed=5, limit=limit)
    for size in (None, 4):
        assert order(samples, size) == expected[:limit]
    assert samples.labels("y").tolist() == expected[:limit]
    shards = [samples.slice(start, start + 4) for start in range(0, samples.count, 4)]
    assert [number for shard in shards for number in order(shard)] == expected[:limit]
    assert order(open_samples(forms[form], [X], shuffle_seed=6)) != expected


def test_the_order_of_a_shuffle_is_fixed_for_good():
    samples = open_samples({"x": ROWS[:10]}, [X], shuffle_seed=0)
    assert order(samples) == [3, 2, 1, 8, 6, 0, 7, 4, 5, 9]


def test_two_passes_over_a_shuffle_do_not_disturb_each_other(forms):
    samples = open_samples(forms["deflated"], [X], shuffle_seed=1)
    for one, two in zip(samples.batches(3), samples.slice(0).batches(3), strict=True):
        np.testing.assert_array_equal(one["x"], two["x"])


def test_only_files_that_samples_come_from_are_named(forms):
    paths = [str(path) for path in forms["stored"]]
    assert [s.path for s in open_samples(forms["stored"], [X], limit=9).sources] == paths[:1]
    assert [s.path for s in open_samples(forms["stored"], [X]).slice(9, 12).sources] == paths[1:]


def test_fewer_samples_than_asked_for_is_a_note():
    samples = open_samples({"x": ROWS}, [X], limit=100)
    assert samples.count == COUNT
    assert samples.notes == ("23 of 100 samples that were asked for are used: the data holds 23.",)


@pytest.mark.parametrize(("option", "value"), [("limit", 0), ("limit", -3), ("shuffle_seed", -1)])
def test_numbers_that_mean_nothing(option, value):
    with pytest.raises(ConfigError, match=f"is {value}; expected"):
        open_samples({"x": ROWS}, [X], **{option: value})


@pytest.mark.parametrize(("start", "stop"), [(-1, 3), (0, -1)])
def test_negative_limits_of_a_slice(start, stop):
    with pytest.raises(ConfigError, match="expected positions of 0 or more"):
        open_samples({"x": ROWS}, [X]).slice(start, stop)


def test_an_endless_iterator_with_a_limit():
    def endless():
        while True:
            yield {"x": ROWS[0]}

    assert open_samples(endless(), [X], limit=7).count == 7


# ------------------------------------------------------------------------------------------------ batches that are kept


def ragged(lengths):
    return [{"x": np.full((1, n), i, np.float32)} for i, n in enumerate(lengths)]


def numbers(samples, size=None):
    return [feeds["x"][:, 0].astype(int).tolist() for feeds in samples.batches(size)]


@pytest.mark.parametrize("wrap", [list, Lazy])
def test_ragged_samples_in_another_order(wrap):
    data = wrap(ragged([3, 3, 5, 3, 5, 5]))
    fed = numbers(open_samples(data, [SEQ], shuffle_seed=3), 2)
    assert sorted(chain(*fed)) == [0, 1, 2, 3, 4, 5]
    samples = open_samples(data, [SEQ])
    assert numbers(samples.slice(1, 5), 2) == [[1], [2], [3], [4]]


def test_items_of_several_samples_are_never_cut():
    items = [{"x": ROWS[:3]}, {"x": ROWS[3:4]}, {"x": ROWS[4:9]}]
    samples = open_samples(items, [X])
    assert [len(b["x"]) for b in samples.slice(3).batches(2)] == [1, 5]
    assert numbers(samples.slice(0, 4)) == [[0, 2, 4], [6]]
    for start, stop in ((0, 2), (1, None), (3, 6)):
        with pytest.raises(ConfigError, match="are one item of the data, which is fed as it is"):
            samples.slice(start, stop)
    limited = open_samples(items, [X], limit=6)
    assert (limited.count, len(limited.notes)) == (4, 1)
    with pytest.raises(
        ConfigError, match=r"^2 samples are wanted, but the first item holds 3, .*; expected at least 3"
    ):
        open_samples(items, [X], limit=2)
    for form in (items, Lazy(items)):
        shuffled = open_samples(form, [X], shuffle_seed=1)
        assert sorted(numbers(shuffled)) == [[0, 2, 4], [6], [8, 10, 12, 14, 16]]


def test_a_fixed_batch_is_never_cut(forms):
    fixed = TensorInfo("x", np.dtype("float32"), (4, 2))
    for form in FORMS:
        samples = open_samples(forms[form], [fixed])
        assert samples.count == 20
        assert order(samples.slice(4, 12)) == list(range(4, 12))
        assert order(samples.slice(16)) == [16, 17, 18, 19]
        with pytest.raises(ConfigError, match=r"expected multiples of 4, the model's fixed batch size"):
            samples.slice(3)
        shuffled = open_samples(forms[form], [fixed], shuffle_seed=0, limit=10)
        assert (shuffled.count, len(set(order(shuffled)))) == (8, 8)
        with pytest.raises(DataError, match="holds 3 samples; the model's batch size is fixed at 4"):
            open_samples(forms[form], [fixed], limit=3)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.lists(st.tuples(st.integers(1, 5), st.sampled_from(["a", "b", None, "whole"])), max_size=6), max_size=3
    ),
    st.integers(1, 4),
)
def test_what_fits_whole_batches(table, batch):
    """Against the definition: neighbours of one key, cut at the last multiple."""
    runs = [[Run(n, ((ord(k),),) if k in ("a", "b") else None, k == "whole") for n, k in rows] for rows in table]
    selection = Selection.of(runs).in_batches_of(batch)
    keys = [run.key for rs in runs for run in rs for _ in range(run.rows)]
    groups = []
    for position, key in enumerate(keys):
        if groups and key is not None and keys[groups[-1][-1]] == key:
            groups[-1].append(position)
        else:
            groups.append([position])
    kept = [p for g in groups for p in (g if keys[g[0]] is None else g[: len(g) - len(g) % batch])]
    sizes = [sum(run.rows for run in rs) for rs in runs]
    assert Selection.of(runs).positions(sizes).tolist() == list(range(len(keys)))
    assert selection.positions(sizes).tolist() == kept
    assert selection.count == len(kept)


def test_samples_at_some_positions():
    selection = Selection.of([[Run(3, key=((2,),)), Run(2, key=None, whole=True)], [Run(4, key=((2,),))]])
    assert selection.at([0, 2, 3, 4, 8]).positions([5, 4]).tolist() == [0, 2, 3, 4, 8]
    assert selection.at([]).count == 0
    with pytest.raises(ConfigError, match="one item of the data"):
        selection.at([1, 3])
