"""Loop, whose scan outputs ``onnx.reference`` glues along the first axis instead of stacking them along a new one."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx.helper import tensor_dtype_to_np_dtype
from onnx.reference.op_run import OpRun

from qtool.errors import KernelError
from qtool.runtime.spec.quantized import Array


class Loop(OpRun):
    """Loop: a body of (iteration, condition, carried...) -> (condition, carried..., scan outputs...)."""

    op_domain = ""
    body: Any  # the evaluator of the body, which OpRun sets

    def need_context(self) -> bool:
        """The body may read what is computed around it."""
        return True

    def _run(
        self,
        trips: Array | None,
        condition: Array | None = None,
        *carried: Any,
        context: dict[str, Any] | None = None,
        attributes: dict[str, Any] | None = None,
        **_: Any,
    ) -> tuple[Any, ...]:
        body = self.body
        names = body.input_names
        state = list(carried)
        scans: list[list[Array]] = [[] for _ in range(len(body.output_names) - 1 - len(state))]
        iteration = 0
        going = condition is None or bool(condition.item())
        while going and (trips is None or iteration < trips.item()):
            fed = [np.asarray(iteration, np.int64), np.asarray(going), *state]
            feeds = (context or {}) | dict(zip(names, fed, strict=True))
            flag, *results = body.run(None, feeds, attributes=attributes)
            going = bool(flag.item())
            state = results[: len(state)]
            for scan, value in zip(scans, results[len(state) :], strict=True):
                scan.append(value)
            iteration += 1
        types = body.output_types_[1 + len(state) :]
        return (*state, *(_stacked(scan, kind) for scan, kind in zip(scans, types, strict=True)))


def _stacked(values: list[Array], kind: Any) -> Array:
    """A scan output; without an iteration it is empty, with the element shape that the body declares."""
    if values:
        if len({value.shape for value in values}) > 1:
            raise KernelError(f"A scan output has the shapes {values[0].shape} and others; expected one.")
        return np.stack(values)
    tensor = kind.tensor_type
    shape = tuple(d.dim_value for d in tensor.shape.dim)  # 0 for a dimension that is not known
    return np.empty((0, *shape), tensor_dtype_to_np_dtype(tensor.elem_type))
