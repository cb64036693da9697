"""What checks look at: two models and their samples, with what several checks need kept for all of them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    import onnx

    from qtool.calibrate.samples import Samples
    from qtool.calibrate.segments import SourceGraph
    from qtool.evaluate.checks.span import Range
    from qtool.runtime import Session
    from qtool.runtime.products import GraphView

Model: TypeAlias = "Path | bytes | onnx.ModelProto"

BATCH = 8


class Subject:
    """A float model, a quantized one and samples.

    Weights of files stay in the files. Sessions share one arena, as they run in turn; :meth:`close` gives them back.

    Args:
        float_model: The reference; a path if it has external data.
        quant_model: The candidate.
        samples: Inputs of both.
        num_threads: Threads of each session; None: the runtime's own choice.
        batch_size: Largest number of samples in a run; None: 8.
        layers: Whether checks look at every quantized tensor, where by default they look at inputs and outputs.

    Attributes:
        input_ranges: What somebody saw of the inputs in all samples (``ranges.watch_inputs``); None: nobody looked.
        seen_ranges: What somebody saw of tensors of the float model (``ranges.watch_layers``).
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
        self.input_ranges: Mapping[str, Range] | None = None
        self.seen_ranges: dict[str, Range] = {}
        self._sessions: dict[bool, Session] = {}
        self._exposed: dict[bool, tuple[tuple[str, ...], Session]] = {}

    def session(self, *, optimize: bool) -> Session:
        """The quantized model in onnxruntime.

        Raises:
            ModelError: If onnxruntime does not take it.
        """
        from qtool.runtime import create_session

        if optimize not in self._sessions:
            self._sessions[optimize] = create_session(
                self.quant_model, optimize=optimize, num_threads=self.num_threads, shared_memory=True
            )
        return self._sessions[optimize]

    def exposed(self, names: tuple[str, ...], *, quantized: bool) -> Session:
        """One of the models with inner tensors as outputs, the quantized one as it is written; kept for the next call.

        Raises:
            ModelError: If onnxruntime does not take it.
        """
        import onnx
        from onnx import helper

        from qtool.runtime import create_session

        kept = self._exposed.get(quantized)
        if kept is not None and kept[0] == names:
            return kept[1]
        source = self._light_quant if quantized else self._light_float
        proto = onnx.ModelProto()
        proto.CopyFrom(source.proto)
        present = {value.name for value in proto.graph.output}
        proto.graph.output.extend(helper.make_empty_tensor_value_info(name) for name in names if name not in present)
        session = create_session(
            proto,
            optimize=not quantized,  # optimisations of a float model keep what its tensors mean
            num_threads=self.num_threads,
            base_dir=source.base_dir,
            shared_memory=True,
        )
        self._exposed[quantized] = names, session
        return session

    @cached_property
    def float_session(self) -> Session:
        """The float model in onnxruntime."""
        from qtool.runtime import create_session

        return create_session(self.float_model, num_threads=self.num_threads, shared_memory=True)

    def close(self) -> None:
        """Give the sessions back; what is asked for later is made anew."""
        from qtool.runtime.arena import release_arena
        from qtool.runtime.lean import release

        self._sessions.clear()
        self._exposed.clear()
        self.__dict__.pop("float_session", None)
        release_arena()
        release(cycles=False)

    @cached_property
    def graph(self) -> GraphView:
        """The quantized graph; elements of large tensors are not in it."""
        from qtool.runtime.products import GraphView

        return GraphView(self.light_proto.graph)

    @property
    def light_proto(self) -> onnx.ModelProto:
        """The quantized model; large weights of a file stay there, as external data in ``base_dir``."""
        return self._light_quant.proto

    @property
    def light_float(self) -> onnx.ModelProto:
        """The same of the float model."""
        return self._light_float.proto

    @property
    def base_dir(self) -> Path | None:
        """Folder of the external data of ``light_proto``."""
        return self._light_quant.base_dir

    @cached_property
    def _light_quant(self) -> SourceGraph:
        return _light(self.quant_model)

    @cached_property
    def _light_float(self) -> SourceGraph:
        return _light(self.float_model)

    def first(self, count: int) -> Samples:
        """The first samples, at most ``count``."""
        return self.samples.slice(0, min(count, self.samples.count))


def _light(model: Model) -> SourceGraph:
    import onnx

    from qtool.calibrate.segments import SourceGraph
    from qtool.evaluate.attribution.lazy import lazy_graph

    if isinstance(model, Path):
        return lazy_graph(model)
    return SourceGraph(onnx.load_model_from_string(model) if isinstance(model, bytes) else model, None)
