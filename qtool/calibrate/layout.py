"""How arrays of samples are laid onto model inputs: which axis counts samples, which shapes fit, which casts are safe.

The leading axis of an array counts samples. If the array has as many dimensions as the input, that axis is the model's
batch axis; with one dimension more, complete inputs are stacked on it and are fed one by one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from qtool.errors import DataError
from qtool.runtime import TensorInfo

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Layout:
    """How the arrays of one source are fed.

    Attributes:
        stacked: Names of the inputs whose samples are stacked on an extra leading axis.
        constant: Names of scalar inputs that are given once for all samples.
        batch: Batch size that the model fixes; ``None`` if it takes any.
        one_by_one: Whether samples cannot share a run.
        count: Samples.
    """

    stacked: frozenset[str]
    constant: frozenset[str]
    batch: int | None
    one_by_one: bool
    count: int


def shape_text(shape: Iterable[int | str | None]) -> str:
    """``[N, 3, ?]``: sizes, symbols, and a question mark where nothing is said."""
    return "[" + ", ".join("?" if size is None or size == "" else str(size) for size in shape) + "]"


def listed(names: Iterable[str], most: int = 3) -> str:
    """``'a', 'b', 'c' and 2 more``."""
    quoted = [f"'{name}'" for name in names]
    more = len(quoted) - most
    return ", ".join(quoted) if more <= 0 else f"{', '.join(quoted[:most])} and {more} more"


def require_names(subject: str, inputs: Iterable[TensorInfo], given: Iterable[str]) -> None:
    """Check that every input has an array.

    Raises:
        DataError: Listing what is required and what is given.
    """
    given = list(given)
    required = [info.name for info in inputs]
    missing = [name for name in required if name not in given]
    if missing:
        listed = ", ".join(f"'{name}'" for name in missing)
        raise DataError(
            f"{subject} has no array for input {listed}; required: {', '.join(required)}; "
            f"given: {', '.join(given) or 'nothing'}.",
            hint="Name the arrays after the model's inputs.",
        )


def plan_layout(subject: str, inputs: Iterable[TensorInfo], shapes: Mapping[str, Shape]) -> Layout:
    """Decide how arrays with a leading sample axis are fed.

    Args:
        subject: Start of error messages, such as ``Sample data 'calib.npz'``.
        inputs: What the model wants.
        shapes: Shape of each input's array.

    Raises:
        DataError: If a rank or a dimension does not fit, the arrays disagree about the number of samples, or there
            are none.
    """
    inputs = tuple(inputs)
    stacked, constant, batches, counts = set(), set(), {}, {}
    for info in inputs:
        shape, model = shapes[info.name], info.shape
        if not shape and not model:
            constant.add(info.name)
            continue
        if len(shape) == len(model):
            _match(subject, info, shape, ("N", *model[1:]), skip=1)
            if model[0] == 0:
                raise DataError(
                    f"{subject}: input '{info.name}' has shape {shape_text(model)} in the model, which holds no sample."
                )
            if isinstance(model[0], int):
                batches[info.name] = model[0]
        elif len(shape) == len(model) + 1:
            _match(subject, info, shape, ("N", *model), skip=1)
            stacked.add(info.name)
        else:
            expected = ("N", *model[1:]) if model else ("N",)
            raise DataError(
                f"{subject}: input '{info.name}' has shape {shape_text(shape)}; the model expects "
                f"{shape_text(expected)}: {len(shape)} dimensions, expected {len(expected)}.",
                hint="The leading axis counts samples.",
            )
        counts[info.name] = shape[0]
    if not counts:
        count = 1
    else:
        first, count = next(iter(counts.items()))
        for name, other in counts.items():
            if other != count:
                raise DataError(
                    f"{subject}: input '{first}' has {count} samples, input '{name}' has {other}; "
                    "expected the same number for every input."
                )
    if count == 0:
        raise DataError(
            f"{subject} is empty: input '{first}' has shape {shape_text(shapes[first])}, which is 0 samples."
        )
    sizes = sorted(set(batches.values()))
    if len(sizes) > 1 or (stacked and sizes not in ([], [1])):
        listed = ", ".join(
            [*(f"'{name}' {size}" for name, size in batches.items()), *(["others stacked"] * bool(stacked))]
        )
        raise DataError(
            f"{subject}: the model's inputs fix different batch sizes ({listed}).",
            hint="Stack complete inputs on an extra leading axis: an array of shape [samples, *input shape] for each.",
        )
    return Layout(
        stacked=frozenset(stacked),
        constant=frozenset(constant),
        batch=sizes[0] if sizes and not stacked else None,
        one_by_one=bool(stacked or constant or not counts),
        count=count,
    )


def place_item(subject: str, info: TensorInfo, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """One sample of an iterable as the model takes it: as it is, or with the missing batch axis put in front.

    Raises:
        DataError: If neither fits.
    """
    model = info.shape
    if array.ndim + 1 == len(model) and (model[0] == 1 or not isinstance(model[0], int)):
        _match(subject, info, array.shape, model[1:], skip=0)
        return array[np.newaxis]
    return place_whole(subject, info, array)


def place_whole(subject: str, info: TensorInfo, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """A complete input, batch axis and all.

    Raises:
        DataError: If its shape is another one.
    """
    if array.ndim != len(info.shape):
        raise DataError(
            f"{subject}: input '{info.name}' has shape {shape_text(array.shape)}; the model expects "
            f"{shape_text(info.shape)}: {array.ndim} dimensions, expected {len(info.shape)}."
        )
    _match(subject, info, array.shape, info.shape, skip=0)
    return array


def _match(subject: str, info: TensorInfo, shape: Shape, expected: tuple[int | str | None, ...], *, skip: int) -> None:
    for axis, (found, wanted) in enumerate(zip(shape, expected, strict=True)):
        if axis >= skip and isinstance(wanted, int) and found != wanted:
            raise DataError(
                f"{subject}: input '{info.name}' has shape {shape_text(shape)}; the model expects "
                f"{shape_text(expected)}: dimension {axis} is {found}, expected {wanted}."
            )


# ------------------------------------------------------------------------------------------------------------- casts


def cast_note(subject: str, info: TensorInfo, dtype: np.dtype[Any]) -> str | None:
    """Decide whether an array may be cast to the input's type.

    Floats go to floats; integers and booleans go to integers and booleans if the values fit. Nothing crosses between
    the two: ids are not measurements, and pixels that were not normalised are not what the model was trained on.

    Returns:
        A note about the cast, or ``None`` if there is none to do.

    Raises:
        DataError: If the cast is not one of those.
    """
    native = dtype.newbyteorder("=")
    if native == info.dtype or (native.kind == info.dtype.kind == "U"):
        return None
    if dtype.hasobject:
        raise DataError(f"{subject}: input '{info.name}' holds Python objects; the model expects {info.dtype.name}.")
    if _family(native) is None or _family(native) != _family(info.dtype):
        raise DataError(
            f"{subject}: input '{info.name}' is {dtype.name}; the model expects {info.dtype.name}.",
            hint=f"Convert it yourself where that is meant: array.astype('{info.dtype.name}').",
        )
    return f"Input '{info.name}': {native.name} cast to {info.dtype.name}."


def cast(subject: str, info: TensorInfo, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The array in the input's type, C-contiguous; values must survive (floats up to rounding).

    Raises:
        DataError: If an integer does not fit, or a finite float becomes infinite.
    """
    if array.dtype == info.dtype or info.dtype.kind == "U":
        return np.ascontiguousarray(array) if array.ndim else array
    with np.errstate(all="ignore"):
        result = array.astype(info.dtype)
    if array.size == 0 or np.can_cast(array.dtype, info.dtype, "safe"):
        fits = True
    elif info.dtype.kind == "b":
        fits = bool(np.all((array == 0) | (array == 1)))
    elif _family(info.dtype) == "integer":
        limits = np.iinfo(info.dtype)
        fits = limits.min <= int(array.min()) and int(array.max()) <= limits.max
    else:
        fits = np.array_equal(np.isfinite(result), np.isfinite(array))
    if not fits:
        low, high = array.min(), array.max()
        raise DataError(
            f"{subject}: input '{info.name}' has {array.dtype.name} values in [{low}, {high}], "
            f"which do not fit {info.dtype.name}."
        )
    return np.ascontiguousarray(result) if result.ndim else result


def _family(dtype: np.dtype[Any]) -> str | None:
    if dtype.kind in "iub":
        return "integer"
    # ml_dtypes floats are of kind V (float8 ones of kind f in newer numpy); their names tell
    return "float" if dtype.kind == "f" or dtype.name.startswith(("bfloat", "float")) else None
