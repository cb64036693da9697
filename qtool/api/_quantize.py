"""quantize(): the settings, and the mode that carries them out."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from qtool.api._dynamic import quantize_dynamic
from qtool.api._static import quantize_static
from qtool.api._weight_only import quantize_weights
from qtool.api.arguments import checked_arguments
from qtool.api.limits import keeps_limit
from qtool.api.modes import refuse_unused
from qtool.api.pipeline import Run
from qtool.api.results import QuantizeResult
from qtool.api.settings import ModelLike, Progress, resolve_config
from qtool.config import QuantConfig
from qtool.deferred import later

if TYPE_CHECKING:
    from qtool.calibrate.samples import Data
else:
    Data = later("qtool.calibrate.samples", "Data")


@checked_arguments
@keeps_limit
def quantize(
    model: ModelLike,
    calib: Data | None = None,
    *,
    stats: str | os.PathLike[str] | None = None,
    output: str | os.PathLike[str] | None = None,
    config: QuantConfig | str | os.PathLike[str] | None = None,
    target: str | None = None,
    format: str | None = None,  # noqa: A002 - the field's own word, as in onnxruntime.quantization
    activations: str | None = None,
    weights: str | None = None,
    per_channel: bool | None = None,
    symmetric_activations: bool | None = None,
    method: str | None = None,
    tensor_methods: Mapping[str, str] | None = None,
    include: Sequence[str] | None = None,
    exclude: Sequence[str] | None = None,
    dedicated_qdq: bool | None = None,
    dynamic: bool | None = None,
    allow_empty: bool | None = None,
    weight_only: bool | None = None,
    block: int | None = None,
    scale_type: str | None = None,
    matmul_nbits: bool | None = None,
    prepare: bool | None = None,
    overrides: Sequence[Mapping[str, Any]] | None = None,
    random_calib: int | None = None,
    samples: int | None = None,
    shuffle: int | None = None,
    batch: int | None = None,
    on_nan: Literal["raise", "skip"] = "raise",
    max_memory: int | None = None,
    force: bool = False,
    dry_run: bool = False,
    num_threads: int | None = None,
    progress: Progress | None = None,
) -> QuantizeResult:
    """Quantize a model with scales that are calibrated on samples, verify it, and put it in place.

    One of ``calib``, ``stats`` and ``random_calib`` says where the ranges of activations come from. With ``dynamic``
    nothing does: the running model measures them, and ``calib`` is what the result is verified on. With
    ``weight_only`` there are no ranges, and none of the three is given.

    Args:
        model: A path, an ``onnx.ModelProto`` or an ``onnx_ir.Model``; never changed.
        calib: Samples: paths of files, folders or globs (npz, npy, ONNX test data), a mapping of arrays, or an
            iterable of mappings.
        stats: A statistics file that :func:`calibrate` wrote for this model. The result is the same, byte for byte, as
            from the data that it was made of, whatever the range method.
        output: Destination; by default ``<model>.int8.onnx`` beside a model that is a file, and memory otherwise.
        config: Settings, or a TOML file of settings; the options below override them where they are not None.
        target: What the model is for, one of ``qtool.targets``: it decides the defaults of the next five, and what is
            legal.
        format: ``qlinear`` or ``qdq``.
        activations: Element type of activations.
        weights: Element type of weights.
        per_channel: Weight scales per output channel.
        symmetric_activations: Fix the zero point of activations.
        method: Range method of activations.
        tensor_methods: Range methods of single activations, by a glob of their names; where several match, the last
            one counts.
        include: Only these nodes.
        exclude: Not these nodes.
        dedicated_qdq: One Q/DQ pair for each reader.
        dynamic: Quantize weights now and activations in the running model; see ``QuantConfig``.
        allow_empty: Accept a model in which nothing can be quantized.
        weight_only: Store weights quantized and compute in float. Needs no samples, and takes none.
        block: Elements per scale along the summed axis, in weight-only mode.
        scale_type: ``float8e8m0`` for the MX formats, in weight-only mode.
        matmul_nbits: Write ``com.microsoft.MatMulNBits`` instead of DequantizeLinear, in weight-only mode.
        prepare: False leaves out what only makes the float graph better to quantize; see ``QuantConfig``.
        overrides: Settings of single nodes, as tables ``[[quantize.override]]`` of a TOML file: ``nodes`` (patterns)
            with any of ``weights``, ``per_channel``, ``block``, ``activations``, ``symmetric``, ``method``, ``format``,
            or ``float``; where several match a node, the last one that says something counts.
        random_calib: Calibrate on this many random samples instead of data.
        samples: Use this many samples of ``calib``, the first in order; by default all.
        shuffle: Seed of the order in which the samples are taken; by default that of the data.
        batch: Largest number of samples in a run; by default chosen by their size. Does not change the result.
        on_nan: ``raise`` stops at the first NaN in an observed tensor; ``skip`` leaves NaNs out and notes how many.
        max_memory: Bytes that the process may reach; by default there is no limit. Does not change the result.
        force: Overwrite the output; accept a model that holds quantized operators already.
        dry_run: Decide, but calibrate nothing and write nothing.
        num_threads: Threads of the runtime and the kernels. Does not change the result.
        progress: Called with (stage, done, total).

    Returns:
        What was done. The model is in ``model_path``, or in ``model`` if there is no path.

    Raises:
        ConfigError: For settings that cannot be carried out.
        ModelError: For a model that cannot be read or used.
        DataError: For samples that do not fit.
        NothingToQuantizeError: If nothing was quantized (unless ``allow_empty``).
        VerificationError: If the result does not check, load, run or keep its interface; nothing is put in place.
    """
    settings = resolve_config(
        config,
        target=target,
        format=format,
        activations=activations,
        weights=weights,
        per_channel=per_channel,
        symmetric_activations=symmetric_activations,
        method=method,
        tensor_methods=tensor_methods,
        include=include,
        exclude=exclude,
        dedicated_qdq=dedicated_qdq,
        dynamic=dynamic,
        allow_empty=allow_empty,
        weight_only=weight_only,
        block=block,
        scale_type=scale_type,
        matmul_nbits=matmul_nbits,
        prepare=prepare,
        overrides=overrides,
    )
    refuse_unused(
        settings,
        {
            "stats": stats,
            "calib": calib,
            "random_calib": random_calib,
            "samples": samples,
            "shuffle": shuffle,
            "batch": batch,
            "on_nan": None if on_nan == "raise" else on_nan,
            "max_memory": max_memory,
        },
    )
    run = Run(output=output, force=force, dry_run=dry_run, num_threads=num_threads, progress=progress)
    if settings.weight_only:
        return quantize_weights(model, settings, run)
    if settings.dynamic:
        return quantize_dynamic(
            model, calib, settings, run, samples=samples, shuffle=shuffle, format_given=format is not None
        )
    return quantize_static(
        model,
        calib,
        settings,
        run,
        stats=stats,
        random_calib=random_calib,
        samples=samples,
        shuffle=shuffle,
        batch=batch,
        on_nan=on_nan,
    )
