"""Which samples were observed: parts add up to the whole, and overlaps are noticed."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qtool.calibrate.coverage import (
    OverlapError,
    SourceUse,
    combined,
    file_use,
    memory_use,
    plain_text,
    sample_sha256,
)

A, B = "a1" * 32, "b2" * 32


@settings(max_examples=60, deadline=None)
@given(places=st.lists(st.integers(0, 30), max_size=40))
def test_stretches_count_every_sample(places):
    parts = [(file_use(A, 31, [(place, place + 1)]),) for place in places]
    total = combined(parts, repeats=True)
    counts = np.zeros(32, int)
    for use in total:
        before = (-1, -1, 0)
        for start, stop, times in use.used:
            assert before[1] < start < stop or (before[1] == start and before[2] != times)
            counts[start:stop] += times
            before = (start, stop, times)
    assert counts.tolist() == np.bincount(np.array(places, int), minlength=32).tolist()
    assert sum(use.samples for use in total) == len(places)


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_any_split_adds_up_to_the_whole(data):
    whole = combined([(file_use(A, 12, [(2, 9)]), file_use(B, 5, [(0, 5)])), (memory_use(["01" * 32, "ff" * 32]),)])
    pieces = [(file_use(A, 12, [(i, i + 1)]),) for i in range(2, 9)]
    pieces += [(file_use(B, 5, [(i, i + 1)]),) for i in range(5)]
    pieces += [(memory_use([digest]),) for digest in ("01" * 32, "ff" * 32)]
    pieces = data.draw(st.permutations(pieces))
    while len(pieces) > 1:
        size = data.draw(st.integers(2, len(pieces)))
        pieces = [combined(pieces[:size]), *pieces[size:]]
    assert pieces[0] == whole
    assert [use.held for use in whole] == [12, 5, None]


def test_overlaps_are_named():
    first, second = (file_use(A, 20, [(0, 10)]),), (file_use(B, 9, [(0, 9)]), file_use(A, 20, [(12, 14), (7, 12)]))
    with pytest.raises(OverlapError, match=r"^samples 7 to 9 of the data file with SHA-256 a1a1a1a1a1a1$"):
        combined([first, second])
    with pytest.raises(OverlapError, match=r"^sample 9 of the data file"):
        combined([first, (file_use(A, 20, [(9, 11)]),)])
    assert combined([first, second], repeats=True)[0].used == ((0, 7, 1), (7, 10, 2), (10, 14, 1))
    memory = (memory_use([A, B]),)
    with pytest.raises(OverlapError, match="the 2 samples in memory with digest"):
        combined([memory, memory])
    with pytest.raises(ValueError, match="disagree on how many samples"):
        combined([first, (file_use(A, 21, [(15, 16)]),)])


def test_memory_is_a_sum_of_its_samples():
    assert memory_use(["ff" * 32, "00" * 31 + "03"]) == SourceUse("00" * 31 + "02", None, ((0, 2, 1),))


def test_a_sample_is_its_names_types_shapes_and_values():
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    digests = [
        sample_sha256(feeds)
        for feeds in ({"x": x}, {"y": x}, {"x": x.astype(np.float64)}, {"x": x.reshape(3, 2)}, {"x": x + 1}, {})
    ]
    assert len(set(digests)) == len(digests)
    assert sample_sha256({"b": x, "a": x[:1]}) == sample_sha256({"a": x[:1], "b": np.asfortranarray(x)})


def test_text_is_as_wide_as_its_longest():
    texts = np.array(["ab", "c", "longer"])
    assert plain_text(texts[:2]).dtype == np.dtype("<U2")
    assert sample_sha256({"t": texts[:1]}) == sample_sha256({"t": np.array(["ab"])})
    assert plain_text(np.array([""])).tolist() == [""]
    assert plain_text(texts[:0]).shape == (0,)
