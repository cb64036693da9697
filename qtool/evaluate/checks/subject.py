"""What checks look at: two models and their samples, with what several checks need kept for all of them."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    import onnx

    from qtool.calibrate.samples import Samples
    from qtool.runtime import Session
    from qtool.runtime.products import GraphView

Model: TypeAlias = "Path | bytes | onnx.ModelProto"

BATCH = 8


class Subject:
    """A float model, a quantized one and samples.

    Args:
        float_model: The reference; a path if it has external data.
        quant_model: The candidate.
        samples: Inputs of both.
        num_threads: Threads of each session; None: the runtime's own choice.
        batch_size: Largest number of samples in a run; None: 8.
        layers: Whether checks look at every quantized tensor, where by default they look at inputs and outputs.
    """

    def __init__(
        self,
        float_model: str | Model,
        quant_model: str | Model,
        samples: Samples,
        *,
        num_threads: int | None = None,
        batch_size: int | None = None,
        layers: bool = False,
    ) -> None:
        self.float_model: Model = Path(float_model) if isinstance(float_model, str) else float_model
        self.quant_model: Model = Path(quant_model) if isinstance(quant_model, str) else quant_model
        self.samples = samples
        self.num_threads = num_threads
        self.batch_size = batch_size or BATCH
        self.layers = layers
        self._sessions: dict[bool, Session] = {}
        self._exposed: dict[bool, tuple[tuple[str, ...], Session]] = {}

    def session(self, *, optimize: bool) -> Session:
        """The quantized model in onnxruntime.

        Raises:
            ModelError: If onnxruntime does not take it.
        """
        from qtool.runtime import create_session

        if optimize not in self._sessions:
            self._sessions[optimize] = create_session(self.quant_model, optimize=optimize, num_threads=self.num_threads)
        return self._sessions[optimize]

    def exposed(self, names: tuple[str, ...], *, quantized: bool) -> Session:
        """One of the models as it is written, with inner tensors as outputs; kept for the next call.

        Raises:
            ModelError: If onnxruntime does not take it.
        """
        import onnx
        from onnx import helper

        from qtool.runtime import create_session

        kept = self._exposed.get(quantized)
        if kept is not None and kept[0] == names:
            return kept[1]
        source = self.quant_model if quantized else self.float_model
        proto = onnx.ModelProto()
        proto.CopyFrom(self.light_proto if quantized else self.light_float)
        present = {value.name for value in proto.graph.output}
        proto.graph.output.extend(helper.make_empty_tensor_value_info(name) for name in names if name not in present)
        session = create_session(
            proto,
            optimize=False,
            num_threads=self.num_threads,
            base_dir=source.parent if isinstance(source, Path) else None,
        )
        self._exposed[quantized] = names, session
        return session

    @cached_property
    def float_session(self) -> Session:
        """The float model in onnxruntime."""
        from qtool.runtime import create_session

        return create_session(self.float_model, num_threads=self.num_threads)

    @cached_property
    def graph(self) -> GraphView:
        """The quantized graph, without external data."""
        from qtool.runtime.products import GraphView

        return GraphView(self.light_proto.graph)

    @cached_property
    def light_proto(self) -> onnx.ModelProto:
        """The quantized model; what is in external files stays there."""
        return _light(self.quant_model)

    @cached_property
    def light_float(self) -> onnx.ModelProto:
        """The same of the float model."""
        return _light(self.float_model)

    @property
    def base_dir(self) -> Path | None:
        """Folder of external data."""
        return self.quant_model.parent if isinstance(self.quant_model, Path) else None

    def first(self, count: int) -> Samples:
        """The first samples, at most ``count``."""
        return self.samples.slice(0, min(count, self.samples.count))


def _light(model: Model) -> onnx.ModelProto:
    import onnx

    if isinstance(model, bytes):
        return onnx.load_model_from_string(model)
    if isinstance(model, Path):
        return onnx.load(model, load_external_data=False)
    return model
