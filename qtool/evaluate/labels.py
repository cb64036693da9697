"""What labels are and which output they belong to, told by dtype and shape.

| labels | an output of shape | are |
|---|---|---|
| integer (N,) | (N, classes) | a class per sample |
| integer (N, ...) | (N, ..., classes) | a class per position |
| integer (N, space...) | (N, channels, space...) | a label map; one channel is a mask |
| float, the output's shape, or without a last axis of 1 | | regression targets |
| integer (N, length), with a CTC blank | (N, time, classes) | sequences of ids |

bool counts as integer. -100 is no label; in a label map 255 is none either, where it is not a class; nor is NaN among
regression targets.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from qtool.errors import DataError
from qtool.evaluate.metrics._classes import IGNORED_LABEL
from qtool.evaluate.metrics.base import Array, LabelKind

VOID = 255
"""Label of a position without a class in 8-bit label maps, as in PASCAL VOC."""


def require_numbers(labels: Array, key: str) -> None:
    """Check that labels are integers or floats.

    Raises:
        DataError: If they are text or something else.
    """
    if labels.dtype.kind in "US":
        raise DataError(
            f"Labels '{key}' are text; expected class indices, ids or regression targets.",
            hint="Store the ids of the tokens, one row per sample, filled up with -100.",
        )
    if labels.dtype.kind not in "biuf":
        raise DataError(f"Labels '{key}' are {labels.dtype}; expected integers or floats.")


def kind_of(output: Array, labels: Array, *, ctc: bool) -> LabelKind | None:
    """What labels are beside an output of the same batch; None if they do not belong to it.

    Args:
        output: Output of a model.
        labels: Labels of the same samples.
        ctc: Whether the output holds CTC scores.
    """
    classes = output.shape[-1] if output.ndim else 0
    if labels.dtype.kind == "f":
        fits = labels.shape == output.shape or (classes == 1 and labels.shape == output.shape[:-1])
        return LabelKind.TARGETS if fits and output.dtype.kind not in "b" else None
    if ctc:
        fits = output.ndim == 3 and labels.ndim == 2 and classes > 1 and len(labels) == len(output)
        return LabelKind.SEQUENCES if fits else None
    if classes > 1 and labels.shape == output.shape[:-1]:
        return LabelKind.CLASSES if labels.ndim < 2 else LabelKind.TOKENS
    if output.ndim >= 3 and output.shape[1] >= 1 and labels.shape == (*output.shape[:1], *output.shape[2:]):
        return LabelKind.MAP
    return None


def kinds_of(outputs: Mapping[str, Array], labels: Array, *, ctc: bool = False) -> dict[str, LabelKind]:
    """Names of the outputs that labels can belong to, and what they are there."""
    found = {name: kind_of(array, labels, ctc=ctc) for name, array in outputs.items()}
    return {name: kind for name, kind in found.items() if kind is not None}


def misfit(key: str, labels: Array, outputs: Mapping[str, Array], batch: int, *, ctc: bool) -> DataError:
    """What to say where labels belong to no output."""
    shapes = ", ".join(f"'{name}' {array.shape}" for name, array in outputs.items())
    found = f"Labels '{key}' of shape {labels.shape} fit no output; expected"
    end = f" In a batch of {batch} the outputs are {shapes}."
    if labels.dtype.kind == "f":
        return DataError(
            f"{found} for {labels.dtype} the shape of an output, as regression targets.{end}",
            hint="Store class indices as integers.",
        )
    if ctc:
        return DataError(f"{found} one row of ids per sample, for an output (samples, time, classes).{end}")
    return DataError(
        f"{found} the shape of an output without its last axis, which holds the scores of at least 2 classes, or "
        f"without its channel axis, for a label map.{end}",
        hint="Leave out --labels, or name an array with one class index per decision. Regression targets are floats; "
        "ids of another length than the output need --ctc-blank.",
    )


def arrange(kind: LabelKind, reference: Array, candidate: Array, labels: Array) -> tuple[Array, Array, Array]:
    """Bring outputs and labels into the one shape that metrics know: classes last, targets like the output.

    Args:
        kind: What the labels are.
        reference: Output of the float model.
        candidate: Output of the quantized model, same shape.
        labels: Labels of the batch.
    """
    if kind is LabelKind.TARGETS:
        return reference, candidate, labels.reshape(reference.shape)
    if kind is not LabelKind.MAP:
        return reference, candidate, labels
    ours, theirs = (np.moveaxis(array, 1, -1) for array in (reference, candidate))
    classes = reference.shape[1]
    if classes == 1:
        # a mask is the decision between 0.5 and the score
        ours, theirs = (
            np.concatenate([np.full(array.shape, 0.5), array.astype(np.float64)], axis=-1) for array in (ours, theirs)
        )
        return ours, theirs, np.where(labels == IGNORED_LABEL, IGNORED_LABEL, labels != 0)
    void = (labels == VOID) & (classes <= VOID)
    return ours, theirs, np.where(void, IGNORED_LABEL, labels.astype(np.int64))
