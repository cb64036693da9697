"""What labels are is told by dtype and shape alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from qtool.evaluate.labels import arrange, kind_of
from qtool.evaluate.metrics.base import LabelKind


@pytest.mark.parametrize(
    ("output", "labels", "dtype", "ctc", "kind"),
    [
        ((8, 10), (8,), np.int64, False, LabelKind.CLASSES),
        ((8, 10), (8,), np.bool_, False, LabelKind.CLASSES),
        ((10,), (), np.int64, False, LabelKind.CLASSES),
        ((8, 5, 10), (8, 5), np.int32, False, LabelKind.TOKENS),
        ((8, 21, 4, 6), (8, 4, 6), np.uint8, False, LabelKind.MAP),
        ((8, 1, 4, 6), (8, 4, 6), np.uint8, False, LabelKind.MAP),
        ((8, 4, 4), (8, 4), np.int64, False, LabelKind.TOKENS),  # the last axis comes first
        ((8, 3), (8, 3), np.float32, False, LabelKind.TARGETS),
        ((8, 1), (8,), np.float64, False, LabelKind.TARGETS),
        ((8, 20, 30), (8, 7), np.int64, True, LabelKind.SEQUENCES),
        ((8, 20, 30), (8, 20), np.int64, True, LabelKind.SEQUENCES),
        ((8, 1), (8,), np.int64, False, None),
        ((8, 3), (8, 3), np.int64, False, None),
        ((8, 3), (8,), np.float32, False, None),
        ((8, 20, 30), (8, 7), np.int64, False, None),
        ((8, 30), (8, 7), np.int64, True, None),
        ((), (), np.int64, False, None),
        ((8, 0), (8,), np.int64, False, None),
    ],
)
def test_kinds(output: tuple[int, ...], labels: tuple[int, ...], dtype: Any, ctc: bool, kind: LabelKind | None) -> None:
    assert kind_of(np.zeros(output, np.float32), np.zeros(labels, dtype), ctc=ctc) is kind


def test_a_map_has_its_classes_last() -> None:
    scores = np.arange(12, dtype=np.float32).reshape(1, 3, 2, 2)
    labels = np.array([[[0, 2], [255, -100]]])
    ours, theirs, found = arrange(LabelKind.MAP, scores, -scores, labels)
    assert ours[0, 1, 0].tolist() == [2, 6, 10]
    assert np.array_equal(theirs, -ours)
    assert found.tolist() == [[[0, 2], [-100, -100]]]


def test_255_is_a_class_where_there_are_as_many() -> None:
    scores = np.zeros((1, 256, 1, 1), np.float32)
    assert arrange(LabelKind.MAP, scores, scores, np.array([[[255]]], np.uint8))[2].tolist() == [[[255]]]


def test_a_mask_is_two_classes() -> None:
    scores = np.array([0.5, 0.6, np.nan, -3], np.float32).reshape(1, 1, 1, 4)
    ours, _, labels = arrange(LabelKind.MAP, scores, scores, np.array([[[255, 1, 0, -100]]]))
    assert ours[0, 0, [0, 1, 3]].argmax(-1).tolist() == [0, 1, 0]
    assert labels.tolist() == [[[1, 1, 0, -100]]]


def test_targets_take_the_outputs_shape() -> None:
    output = np.zeros((3, 1), np.float32)
    assert arrange(LabelKind.TARGETS, output, output, np.arange(3.0))[2].shape == (3, 1)
