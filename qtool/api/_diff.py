"""diff(): in what the quantization of two models differs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qtool.api.settings import ModelLike
from qtool.deferred import later

if TYPE_CHECKING:
    from qtool.convert import Difference
else:
    Difference = later("qtool.convert", "Difference")


def diff(a: ModelLike, b: ModelLike) -> Difference:
    """Compare the quantization parameters of two models: scales, zero points, types, axes, blocks and codes.

    Tensors are matched by the names that they share, whatever the form: the operator form and the QDQ form of one model
    have no difference.

    Args:
        a: A path, proto or onnx_ir model; never changed.
        b: Another.

    Returns:
        A row for each thing that differs; it is empty where nothing does.

    Raises:
        ModelError: For a model that cannot be read.
    """
    from qtool.convert import difference, parameters_of
    from qtool.prepare.load import load_model

    return difference(parameters_of(load_model(a)), parameters_of(load_model(b)))
