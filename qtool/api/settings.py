"""Settings from what a caller gives, and a model that is prepared for them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from qtool.config import QuantConfig, custom_ops_of
from qtool.deferred import later
from qtool.dtypes import qdtype
from qtool.errors import ConfigError, ModelError
from qtool.runtime.custom_ops import register_custom_ops

if TYPE_CHECKING:
    import onnx
    import onnx_ir as ir

    from qtool.plan import Plan, Selection
    from qtool.prepare.prepare import Prepared

    ModelLike: TypeAlias = str | os.PathLike[str] | onnx.ModelProto | ir.Model
else:
    ModelLike = str | os.PathLike[str] | later("onnx", "ModelProto") | later("onnx_ir", "Model")

Progress: TypeAlias = Callable[[str, int, int], None]


# first opset and IR version of DynamicQuantizeLinear; MatMulInteger and ConvInteger are one older
DYNAMIC_FLOOR = (11, 6)

QUANTIZED_OPS = frozenset(
    (
        "QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "QLinearConv", "QLinearMatMul", "ConvInteger",
        "MatMulInteger", "MatMulNBits", "QLinearAdd", "QGemm", "QAttention", "GatherBlockQuantized",
        "DynamicQuantizeLSTM",
    )
)  # fmt: skip


def resolve_config(config: QuantConfig | str | os.PathLike[str] | None, **options: Any) -> QuantConfig:
    """Settings from a config or a TOML file, with the options that are not None on top.

    Libraries of custom operators that the file names count from then on.

    Raises:
        ConfigError: For an unreadable file, an unknown name, or an illegal value or combination.
    """
    from qtool.calibrate.methods import parse_method

    base = QuantConfig() if config is None else config
    if isinstance(base, (str, os.PathLike)):
        path = Path(base)
        base = QuantConfig.from_toml(path)
        for library in custom_ops_of(path):
            register_custom_ops(library)
    if not isinstance(base, QuantConfig):
        raise ConfigError(f"Config is {type(base).__name__}; expected a QuantConfig or the path of a TOML file.")
    settings = base.with_options(**options)
    settings.refuse_unread([name for name, value in options.items() if value])
    for text in (settings.method, *(method for _, method in settings.tensor_methods)):
        parse_method(text)
    for override in settings.overrides:
        if override.method is not None:
            try:
                parse_method(override.method)
            except ConfigError as error:
                raise ConfigError(f"{override.subject}: {error.message}", hint=error.hint) from error
    return settings


def prepared_for(loaded: ir.Model, settings: QuantConfig) -> tuple[Prepared, QuantConfig, list[str]]:
    """The prepared model, the settings that can be carried out on it, and what a user should know about that.

    Weight scales per channel need a higher opset than one scale per tensor. Where the model cannot be raised that far,
    but is high enough for the latter, that is what it gets.
    """
    remarks: list[str] = []
    limit = settings.facts.max_opset
    if limit is not None and _opset(loaded) > limit:
        prepared = _prepare_for(loaded, settings, max_opset=limit)
        if prepared.obstacle is None:
            return prepared, settings, []
        kept = f"the model keeps opset {_opset(loaded)}, although target {settings.target} asks for {limit} at most"
        remarks = [f"{kept}: {prepared.obstacle.message.rpartition('cannot be lowered: ')[2]}"]
    prepared = _prepare_for(loaded, settings)
    if prepared.obstacle is None or not settings.per_channel:
        return prepared, settings, remarks
    per_tensor = settings.with_options(per_channel=False)
    again = _prepare_for(loaded, per_tensor)
    if again.obstacle is not None:
        return prepared, settings, remarks
    remarks += [f"weights have one scale per tensor, not per channel: {prepared.obstacle.message}"]
    return again, per_tensor, remarks


def _opset(model: ir.Model) -> int:
    return model.graph.opset_imports.get("", model.graph.opset_imports.get("ai.onnx", 0))


def _prepare_for(loaded: ir.Model, settings: QuantConfig, *, max_opset: int | None = None) -> Prepared:
    from qtool.plan.ops import handlers
    from qtool.prepare.prepare import prepare
    from qtool.runtime.capability import highest_quantizing_opset

    opset = _opset(loaded)
    if settings.dynamic:
        # no operator of dynamic mode has a version above 11, and scales per column need none
        return prepare(
            loaded,
            min_opset=DYNAMIC_FLOOR[0],
            min_ir=DYNAMIC_FLOOR[1],
            bodies=True,
            optional=settings.prepare,
            inline=(*handlers(), "LSTM"),
        )
    floors = [qdtype(one.activations).floor() for one in settings.variants]
    floors += [qdtype(one.weights).floor(per_axis=one.per_channel) for one in settings.variants]
    min_opset, min_ir = max(f[0] for f in floors), max(f[1] for f in floors)
    highest = highest_quantizing_opset(opset) if max_opset is None else max_opset
    return prepare(
        loaded,
        min_opset=min_opset,
        min_ir=min_ir,
        max_opset=max(min_opset, highest),
        bodies=True,
        captures=True,
        optional=settings.prepare,
        inline=tuple(handlers()),
    )


def selection_for(prepared: Prepared, settings: QuantConfig) -> Selection:
    """The include and exclude patterns, resolved against the nodes of the user's model.

    Raises:
        ConfigError: For a pattern that matches none.
    """
    from qtool.plan import Selection

    return Selection(settings, [(n.name, n.op_type, n.domain) for n in prepared.source_nodes])


def refuse_obstacle(prepared: Prepared, plan: Plan) -> None:
    """Refuse a model that could not be prepared for what is planned; one that stays float needs no preparation.

    Raises:
        QtoolError: The obstacle.
    """
    if plan.decisions and prepared.obstacle is not None:
        raise prepared.obstacle


def refuse_quantized(model: ir.Model, *, force: bool) -> None:
    """Refuse a model that holds quantized operators already, unless ``force``.

    Raises:
        ModelError: If it does.
    """
    found = sorted({node.op_type for node in model.graph.all_nodes() if node.op_type in QUANTIZED_OPS})
    if found and not force:
        raise ModelError(
            f"The model is quantized already: it holds {', '.join(found)}.",
            hint="Start from the float model; --force quantizes what is still float.",
        )
