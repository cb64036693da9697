"""Sample files of every kind that hold the same values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import TensorProto, numpy_helper

from qtool.runtime import TensorInfo


def info(name: str, shape: list[int | str | None], dtype: str = "float32") -> TensorInfo:
    return TensorInfo(name, np.dtype(dtype), tuple(shape))


def tensor(array: npt.NDArray[Any], name: str = "") -> TensorProto:
    return numpy_helper.from_array(np.ascontiguousarray(array), name)


def save_npy(folder: Path, **arrays: npt.NDArray[Any]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
    return folder


def save_sets(folder: Path, *, named: bool = True, **arrays: npt.NDArray[Any]) -> Path:
    """A data set for each sample, of batch size 1."""
    for index in range(len(next(iter(arrays.values())))):
        directory = folder / f"test_data_set_{index}"
        directory.mkdir(parents=True)
        for number, (name, array) in enumerate(arrays.items()):
            content = tensor(array[index : index + 1], name if named else "").SerializeToString()
            (directory / f"input_{number}.pb").write_bytes(content)
    return folder
