"""Merging and comparing statistics: parts equal the whole, and what does not belong together is refused by name."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qtool.calibrate.coverage import Coverage, file_use, memory_use, sample_sha256
from qtool.calibrate.difference import difference
from qtool.calibrate.kept import Kept, KeptBatch
from qtool.calibrate.saved import SavedStatistics, merge_saved
from qtool.calibrate.statistics import Statistics, TensorStatistics
from qtool.calibrate.statsfile import save_statistics
from qtool.calibrate.wanted import Wanted
from qtool.errors import DataError
from qtool.prepare.fingerprint import Fingerprint, Part

MODEL = Fingerprint((Part("tensor", "W", "0" * 64), Part("node", "n", "b2" * 32)))
WANTED = {"b": Wanted("b", -1, np.array([1.0, 2.0, 0.5])), "a": None}
ROWS = np.random.default_rng(0).standard_normal((40, 3)).astype(np.float32) ** 3


def of(
    rows: np.ndarray, subject: str = "File 'f'", coverage: Coverage | None = None, **changes: Any
) -> SavedStatistics:
    """Statistics of samples in memory."""
    tensors = {}
    for name, wanted in WANTED.items():
        tensors[name] = TensorStatistics.empty(histogram=True, wanted=wanted)
        for row in rows:
            tensors[name].update(row[np.newaxis] * (1 if name == "a" else 2))
    keys = [sample_sha256({"x": row}) for row in rows]
    kept = Kept.of(KeptBatch(key, 0, 1, {"x": row}) for key, row in zip(keys, rows, strict=True))
    fields: dict[str, Any] = {
        "statistics": Statistics(tensors, len(rows)),
        "model": MODEL,
        "coverage": (memory_use(keys),) if coverage is None else coverage,
        "kept": kept,
        "subject": subject,
    }
    return SavedStatistics(**fields | changes)


def of_file(start: int, stop: int, subject: str = "File 'f'", sha: str = "ab" * 32, **changes: Any) -> SavedStatistics:
    return of(ROWS[start:stop], subject, (file_use(sha, 40, [(start, stop)]),), **changes)


@settings(max_examples=15, deadline=None)
@given(owners=st.lists(st.integers(0, 4), min_size=40, max_size=40), order=st.permutations(range(40)))
def test_any_split_in_any_order_gives_the_bytes_of_the_whole(tmp_path_factory, owners, order):
    folder = tmp_path_factory.mktemp("merge")
    rows = ROWS[list(order)]
    parts = [of(rows[[owner == part for owner in owners]]) for part in set(owners)]
    save_statistics(folder / "whole.npz", of(ROWS))
    save_statistics(folder / "merged.npz", merge_saved(parts))
    save_statistics(folder / "nested.npz", merge_saved([*parts[2:], merge_saved(parts[:2])]))
    whole = (folder / "whole.npz").read_bytes()
    assert (folder / "merged.npz").read_bytes() == whole
    assert (folder / "nested.npz").read_bytes() == whole


def test_parts_of_one_file():
    merged = merge_saved([of_file(20, 40), of_file(0, 5), of_file(5, 20)])
    assert merged.coverage == (file_use("ab" * 32, 40, [(0, 40)]),)
    assert merged.samples == merged.statistics.samples == 40
    assert difference(merged, of_file(0, 40)).equal
    with pytest.raises(ValueError, match="no statistics"):
        merge_saved([])


def refused(*parts: SavedStatistics) -> str:
    messages = set()
    with pytest.raises(DataError) as caught:
        merge_saved(parts)
    messages.add(caught.value.message)
    assert caught.value.hint is None or "\n" not in caught.value.hint
    return messages.pop()


def test_shared_samples_are_refused_by_file_and_place():
    parts = [of_file(0, 10, "File 'a'"), of_file(10, 20, "File 'b'"), of_file(15, 25, "File 'c'")]
    assert refused(*parts) == (
        "File 'b' and file 'c' share samples: samples 15 to 19 of the data file with SHA-256 abababababab; merged, "
        "they would count twice."
    )
    assert "share samples: the 3 samples in memory" in refused(of(ROWS[:3], "A"), of(ROWS[5:9]), of(ROWS[:3], "B"))
    other = of(ROWS[:4], coverage=(file_use("ab" * 32, 41, [(30, 34)]),))
    assert "disagree on how many samples data file abababababab holds" in refused(of_file(0, 10), other)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"model": Fingerprint((Part("tensor", "W", "1" * 64),))},
            "File 'b' belongs to another model than file 'a': tensor 'W' differs.",
        ),
        (
            {"statistics": Statistics({"b": of(ROWS[:1]).statistics["b"]}, 1)},
            "settings: only the second has tensor 'a'.",
        ),
        (
            {"statistics": Statistics({**of(ROWS[:1]).statistics, "a": TensorStatistics.empty(histogram=False)}, 1)},
            "settings: tensor 'a': Only one of the two statistics has a histogram.",
        ),
        (
            {
                "statistics": Statistics(
                    {**of(ROWS[:1]).statistics, "b": TensorStatistics.empty(histogram=True, wanted=Wanted("b", 1))}, 1
                )
            },
            "settings: tensor 'b': The two statistics have channel axes 1 and -1.",
        ),
    ],
)
def test_other_models_and_settings_are_refused_by_the_first_difference(changes, said):
    assert refused(of_file(0, 10, "File 'a'"), of_file(10, 20, "File 'b'", **changes)) == said.replace(
        "settings:", "File 'b' and file 'a' were made with different settings:"
    )


def test_another_order_of_tensors_is_the_same_settings():
    turned = of(ROWS[10:20])
    turned = of(ROWS[10:20], statistics=Statistics(dict(reversed(turned.statistics.tensors.items())), 10))
    assert list(merge_saved([of(ROWS[:10]), of(ROWS[20:])]).statistics) == ["b", "a"]
    for parts in ([of(ROWS[:10]), turned, of(ROWS[20:])], [turned, of(ROWS[:10]), of(ROWS[20:])]):
        assert list(merge_saved(parts).statistics) == ["a", "b"]


def rows_of(first: SavedStatistics, second: SavedStatistics) -> list[tuple[str, str, str, str]]:
    return [(r.tensor, r.what, r.first, r.second) for r in difference(first, second).tensors]


def test_no_difference():
    found = difference(of_file(0, 40), of(ROWS[::-1]))
    assert found.equal
    assert not found.same_data
    assert found.tensors == ()
    assert difference(of(ROWS), of(ROWS[::-1])).same_data


def test_differences_are_named():
    a, b = np.array([[0.0, 1.0, 2.0]], np.float32), np.array([[0.5, 1.0, 4.0]], np.float32)
    assert rows_of(of(a), of(b)) == [
        ("b", "range", "[0.0, 4.0]", "[1.0, 8.0]"),
        ("b", "zeros", "1", "0"),
        ("b", "mean range", "[0.0, 4.0] of 1 samples", "[1.0, 8.0] of 1 samples"),
        ("b", "histogram", "2 values", "in other bins"),
        ("b", "channels", "3 along axis -1", "3 along axis -1"),
        ("a", "range", "[0.0, 2.0]", "[0.5, 4.0]"),
        ("a", "zeros", "1", "0"),
        ("a", "mean range", "[0.0, 2.0] of 1 samples", "[0.5, 4.0] of 1 samples"),
        ("a", "histogram", "2 values", "in other bins"),
    ]


def test_values_that_moved_to_other_bins_are_counted():
    a, b = (np.array([[-1.0, x, 3.0]], np.float32) for x in (0.5, 0.75))
    assert [row for row in rows_of(of(a), of(b)) if row[0] == "a"] == [("a", "histogram", "1 values", "in other bins")]


def test_models_samples_and_missing_tensors():
    other = of(ROWS[:3], model=Fingerprint((Part("tensor", "V", "0" * 64),)), statistics=Statistics({}, 0))
    found = difference(of(ROWS[:4]), other)
    assert found.model == "where the first has tensor 'W', it has tensor 'V'"
    assert found.samples == (4, 3)
    assert [(r.tensor, r.what, r.first, r.second) for r in found.tensors] == [
        ("b", "tensor", "observed", "-"),
        ("a", "tensor", "observed", "-"),
    ]
    assert not found.equal
    assert found.to_dict()["differences"][0] == {"tensor": "b", "what": "tensor", "first": "observed", "second": "-"}
    plain = {name: TensorStatistics.of(ROWS[:4], histogram=False) for name in ("b", "a")}
    found = difference(of(ROWS[:4]), of(ROWS[:4], statistics=Statistics(plain, 4)))
    assert ("b", "channels", "3 along axis -1", "-") in rows_of(
        of(ROWS[:4]), of(ROWS[:4], statistics=Statistics(plain, 4))
    )
    assert tuple(vars(found.tensors[-1]).values()) == ("a", "histogram", "observed", "-")
