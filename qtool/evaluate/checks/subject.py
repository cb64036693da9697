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
        self._exposed: tuple[tuple[str, ...], Session] | None = None

    def session(self, *, optimize: bool) -> Session:
        """The quantized model in onnxruntime.

        Raises:
            ModelError: If onnxruntime does not take it.
        """
        from qtool.runtime import create_session

        if optimize not in self._sessions:
            self._sessions[optimize] = create_session(self.quant_model, optimize=optimize, num_threads=self.num_threads)
        return self._sessions[optimize]

    def exposed(self, names: tuple[str, ...]) -> Session:
        """The quantized model as it is written, with inner tensors as outputs; kept for the next call.

        Raises:
            ModelError: If onnxruntime does not take it.
        """
        from onnx import helper

        from qtool.runtime import create_session

        if self._exposed is None or self._exposed[0] != names:
            import onnx

            proto = onnx.ModelProto()
            proto.CopyFrom(self.light_proto)
            present = {value.name for value in proto.graph.output}
            proto.graph.output.extend(
                helper.make_empty_tensor_value_info(name) for name in names if name not in present
            )
            session = create_session(proto, optimize=False, num_threads=self.num_threads, base_dir=self.base_dir)
            self._exposed = names, session
        return self._exposed[1]

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
        import onnx

        if isinstance(self.quant_model, bytes):
            return onnx.load_model_from_string(self.quant_model)
        if isinstance(self.quant_model, Path):
            return onnx.load(self.quant_model, load_external_data=False)
        return self.quant_model

    @property
    def base_dir(self) -> Path | None:
        """Folder of external data."""
        return self.quant_model.parent if isinstance(self.quant_model, Path) else None

    def first(self, count: int) -> Samples:
        """The first samples, at most ``count``."""
        return self.samples.slice(0, min(count, self.samples.count))
