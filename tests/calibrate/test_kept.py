"""The samples that a statistics file keeps depend on the data alone."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qtool.calibrate import kept as module
from qtool.calibrate.coverage import file_use, memory_use, sample_sha256
from qtool.calibrate.kept import Kept, KeptBatch, survey
from qtool.calibrate.samples import open_samples
from qtool.calibrate.sources import file_sha256
from qtool.runtime import TensorInfo

X = TensorInfo("x", np.dtype(np.float32), ("N", 3))
ROWS = np.arange(60, dtype=np.float32).reshape(20, 3)


def batch(place: int, samples: int = 1, nbytes: int = 4) -> KeptBatch:
    return KeptBatch("a" * 64, place, samples, {"x": np.zeros(nbytes, np.uint8)})


def places(kept: Kept) -> tuple[list[int], int | None]:
    return [b.index for b in kept.batches], None if kept.cut is None else kept.cut[1]


def test_a_number_of_samples_or_of_bytes_ends_the_list(monkeypatch):
    monkeypatch.setattr(module, "MAX_BYTES", 20)
    monkeypatch.setattr(module, "MAX_SAMPLES", 4)
    assert places(Kept.of([batch(3), batch(1), batch(2), batch(5), batch(4)])) == ([1, 2, 3, 4], None)
    assert places(Kept.of([batch(1, 3), batch(2, 3), batch(3)])) == ([1, 2], None)
    assert places(Kept.of([batch(1), batch(2, nbytes=17), batch(3)])) == ([1], 2)
    assert places(Kept.of([batch(1, nbytes=21)])) == ([], 1)
    assert places(Kept.of([batch(1), batch(3)], cut=("a" * 64, 2))) == ([1], 2)
    assert places(Kept.of([batch(i) for i in range(4)], cut=("a" * 64, 9))) == ([0, 1, 2, 3], None)
    assert places(Kept.of([])) == ([], None)


def test_beyond_a_few_samples_all_have_to_be_small(monkeypatch):
    monkeypatch.setattr(module, "MAX_BYTES", 40)
    monkeypatch.setattr(module, "SMALL_BYTES", 24)
    assert places(Kept.of([batch(i) for i in range(9)])) == ([0, 1, 2, 3, 4, 5], 6)
    assert places(Kept.of([batch(i, nbytes=7) for i in range(9)])) == ([0, 1, 2, 3], 4)
    assert places(Kept.of([batch(i, nbytes=11) for i in range(9)])) == ([0, 1, 2], 3)
    assert places(Kept.of([batch(i, nbytes=0) for i in range(80)])) == (list(range(64)), None)
    assert places(Kept.of([batch(i, 16, 1) for i in range(9)])) == ([0, 1, 2, 3], None)
    assert places(Kept.of([batch(i) for i in range(5)], cut=("a" * 64, 9))) == ([0, 1, 2, 3, 4], 9)


@settings(max_examples=100, deadline=None)
@given(
    batches=st.lists(st.tuples(st.integers(1, 3), st.integers(0, 12)), max_size=9),
    owners=st.lists(st.integers(0, 3), min_size=9, max_size=9),
    order=st.permutations(range(4)),
)
def test_parts_keep_what_the_whole_keeps(batches, owners, order):
    made = [batch(place, samples, nbytes) for place, (samples, nbytes) in enumerate(batches)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "MAX_BYTES", 20)
        patch.setattr(module, "SMALL_BYTES", 15)
        patch.setattr(module, "MAX_SAMPLES", 7)
        parts = [Kept.of([b for b, owner in zip(made, owners, strict=False) if owner == part]) for part in order]
        assert places(Kept.merged(parts)) == places(Kept.of(made))
        assert places(Kept.merged([Kept.merged(parts[:2]), Kept.merged(parts[2:])])) == places(Kept.of(made))


def same(a: Kept, b: Kept) -> bool:
    return places(a) == places(b) and all(
        one.place == two.place and np.array_equal(one.feeds["x"], two.feeds["x"])
        for one, two in zip(a.batches, b.batches, strict=True)
    )


@pytest.mark.parametrize(
    ("name", "limit", "number"),
    [
        ("MAX_BYTES", module.MAX_BYTES, 20),
        ("MAX_BYTES", 30, 2),
        ("SMALL_BYTES", 80, 6),
        ("SMALL_BYTES", 1, 4),
        ("MAX_SAMPLES", 5, 5),
    ],
)
def test_files_are_surveyed_by_their_digest(tmp_path, monkeypatch, name, limit, number):
    monkeypatch.setattr(module, name, limit)
    paths = []
    for file, (start, stop) in enumerate([(0, 3), (3, 13), (13, 20)]):
        paths.append(tmp_path / f"{file}.npz")
        np.savez(paths[-1], x=ROWS[start:stop])
    coverage, kept = survey(open_samples(paths, [X]))
    assert (coverage, places(kept)) == (survey(open_samples(paths[::-1], [X]))[0], places(kept))
    assert same(kept, survey(open_samples(paths[::-1], [X], shuffle_seed=3))[1])
    digests = sorted((file_sha256(path), count) for path, count in zip(paths, (3, 10, 7), strict=True))
    assert coverage == tuple(file_use(sha, count, [(0, count)]) for sha, count in digests)
    parts = [survey(open_samples(path, [X])) for path in paths]
    assert same(Kept.merged(part for _, part in parts), kept)
    assert kept.batches[0].place == (digests[0][0], 0)
    assert len(kept.batches) == number
    assert (kept.cut is None) == (number in (20, 5))


def test_slices_of_one_file(tmp_path):
    np.savez(tmp_path / "x.npz", x=ROWS)
    whole = open_samples(tmp_path / "x.npz", [X])
    parts = [survey(whole.slice(start, start + 7)) for start in (0, 7, 14)]
    sha = file_sha256(tmp_path / "x.npz")
    assert parts[1][0] == (file_use(sha, 20, [(7, 14)]),)
    assert [b.index for b in parts[1][1].batches] == [7, 8, 9, 10, 11, 12, 13]
    assert same(Kept.merged(part for _, part in parts), survey(whole)[1])
    assert survey(open_samples(tmp_path / "x.npz", [X], limit=3, shuffle_seed=1))[0][0].samples == 3
    np.testing.assert_array_equal(parts[2][1].batches[0].feeds["x"], ROWS[14:15])


def test_memory_is_surveyed_by_its_samples(monkeypatch):
    monkeypatch.setattr(module, "MAX_SAMPLES", 6)
    coverage, kept = survey(open_samples({"x": ROWS}, [X]))
    digests = sorted((sample_sha256({"x": row[np.newaxis]}), row.tolist()) for row in ROWS)
    assert coverage == (memory_use([digest for digest, _ in digests]),)
    assert [(b.source, b.feeds["x"][0].tolist()) for b in kept.batches] == digests[:6]
    shuffled = [{"x": row} for row in np.random.default_rng(0).permutation(ROWS)]
    again = survey(open_samples(shuffled, [X]))
    assert again[0] == coverage
    assert same(again[1], kept)
    parts = [survey(open_samples(shuffled[i::8], [X])) for i in range(8)]
    assert same(Kept.merged(part for _, part in parts), kept)
    assert survey(open_samples({"x": ROWS}, [X]), keep=False)[1].batches == ()
    monkeypatch.setattr(module, "MAX_BYTES", 30)
    two = survey(open_samples({"x": ROWS}, [X]))[1]
    assert (len(two.batches), two.cut) == (2, (digests[2][0], 0))
    parts = [survey(open_samples(shuffled[i::8], [X])) for i in range(8)]
    assert same(Kept.merged(part for _, part in parts), two)


def test_a_fixed_batch_is_kept_whole_and_counted_by_the_sample():
    fixed = TensorInfo("x", np.dtype(np.float32), (4, 3))
    coverage, kept = survey(open_samples({"x": ROWS}, [fixed]))
    assert coverage == survey(open_samples({"x": ROWS}, [X]))[0]
    assert [(b.samples, b.feeds["x"].shape) for b in kept.batches] == [(4, (4, 3))] * 5
