"""What the API returns: values that can be printed, saved as JSON, and asked for numbers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qtool.config import QuantConfig
from qtool.errors import EXIT_OK
from qtool.targets import DEFAULT_TARGET

if TYPE_CHECKING:
    import onnx

    from qtool.api.forecast import PlanTable
    from qtool.evaluate.whole_model import AutoCheck
    from qtool.plan import Plan, Skip
    from qtool.plan.fusion import Fusion
    from qtool.runtime import TensorInfo


@dataclass(frozen=True)
class QuantizeResult:
    """What :func:`quantize` did.

    Attributes:
        model_path: The quantized file; None for a dry run and for a result in memory.
        model: The quantized model, if no output path was given and none could be derived.
        plan: Every decision.
        quantized: Nodes that are quantized, absorbed ones included.
        total: Nodes of the prepared graph, subgraphs included.
        by_op: Operator -> (quantized, all).
        skips: Nodes that stay float, with reasons.
        bytes_before: Size of the source model, external data included.
        bytes_after: Size of the result; 0 for a dry run.
        sqnr_db: Output name -> dB against the float model on the samples that the result was verified on.
        verified_samples: How many those were.
        verified_on: What those were: the first ``calibration`` samples; in dynamic mode ``given`` or ``random`` ones,
            in weight-only mode ``random`` ones, of which there is no dB.
        engine: What ran the result: ``ort``, or ``spec`` where onnxruntime lacks one of its types.
        actions: What preparation did to the float graph.
        notes: What a user should know.
        seconds: Stage -> wall time.
        peak_rss_bytes: Peak resident memory of the process.
        config: The settings that took effect.
        exit_code: What a command should exit with.
        message: One line.
        fusion: Which of the quantized nodes onnxruntime will run on codes, as predicted from the plan; None in the
            modes that calibrate nothing.
        table: Of a dry run: a row for each node, and the size that is to be expected.
        auto: Which ranges the tensors got that were left to method ``auto``, and what that was judged on; None where
            there are none, and for a dry run.
    """

    model_path: Path | None
    model: onnx.ModelProto | None
    plan: Plan
    quantized: int
    total: int
    by_op: dict[str, tuple[int, int]]
    skips: list[Skip]
    bytes_before: int
    bytes_after: int
    sqnr_db: dict[str, float]
    verified_samples: int
    actions: tuple[str, ...]
    notes: list[str]
    seconds: dict[str, float]
    peak_rss_bytes: int
    config: QuantConfig
    verified_on: str = "calibration"
    engine: str = "ort"
    exit_code: int = EXIT_OK
    message: str = ""
    fusion: Fusion | None = None
    table: PlanTable | None = None
    auto: AutoCheck | None = None

    def to_dict(self) -> dict[str, Any]:
        """Strict-JSON-ready: infinities and NaN are strings."""
        return {
            "schema_version": 1,
            "model": str(self.model_path) if self.model_path else None,
            "message": self.message,
            "exit_code": self.exit_code,
            "quantized": self.quantized,
            "total": self.total,
            "bytes_before": self.bytes_before,
            "bytes_after": self.bytes_after,
            "sqnr_db": {name: _json_number(value) for name, value in self.sqnr_db.items()},
            "verified_samples": self.verified_samples,
            "verified_on": self.verified_on,
            "engine": self.engine,
            "seconds": {stage: round(value, 4) for stage, value in self.seconds.items()},
            "peak_rss_bytes": self.peak_rss_bytes,
            "config": self.config.to_dict(),
            "actions": list(self.actions),
            "notes": list(self.notes),
            "fusion": self.fusion.to_dict() if self.fusion is not None else None,
            "auto": self.auto.to_dict() if self.auto is not None else None,
            "plan": self.plan.to_dict(),
        } | ({"table": self.table.to_dict()} if self.table is not None else {})


@dataclass(frozen=True)
class PrepareResult:
    """What :func:`prepare` did.

    Attributes:
        model_path: The prepared file; None for a result in memory.
        model: The prepared model, if no output path was given and none could be derived.
        actions: What each pass did, one line each; passes that found nothing to do have none.
        nodes_before: Nodes of the source model, those in subgraphs included.
        nodes_after: Nodes of the result.
        opset_before: Version of ai.onnx in the source model; 0 if it imports none.
        opset_after: Version of ai.onnx in the result.
        bytes_before: Size of the source model, external data included.
        bytes_after: Size of the result.
        sqnr_db: Output name -> dB against the source model on the samples that the result was verified on.
        verified_samples: How many those were.
        verified_on: What those were: ``given`` or ``random``.
        notes: What a user should know.
        seconds: Stage -> wall time.
        peak_rss_bytes: Peak resident memory of the process.
    """

    model_path: Path | None
    model: onnx.ModelProto | None
    actions: tuple[str, ...]
    nodes_before: int
    nodes_after: int
    opset_before: int
    opset_after: int
    bytes_before: int
    bytes_after: int
    sqnr_db: dict[str, float]
    verified_samples: int
    verified_on: str
    notes: list[str]
    seconds: dict[str, float]
    peak_rss_bytes: int

    def to_dict(self) -> dict[str, Any]:
        """Strict-JSON-ready: infinities and NaN are strings."""
        return {
            "schema_version": 1,
            "model": str(self.model_path) if self.model_path else None,
            "actions": list(self.actions),
            "nodes_before": self.nodes_before,
            "nodes_after": self.nodes_after,
            "opset_before": self.opset_before,
            "opset_after": self.opset_after,
            "bytes_before": self.bytes_before,
            "bytes_after": self.bytes_after,
            "sqnr_db": {name: _json_number(value) for name, value in self.sqnr_db.items()},
            "verified_samples": self.verified_samples,
            "verified_on": self.verified_on,
            "notes": list(self.notes),
            "seconds": {stage: round(value, 4) for stage, value in self.seconds.items()},
            "peak_rss_bytes": self.peak_rss_bytes,
        }


@dataclass(frozen=True)
class Inspection:
    """What :func:`inspect` found.

    Attributes:
        nodes: (name, operator, ``quantize`` or ``float``, reason) of each node of the prepared graph; those
            in subgraphs follow.
        by_op: Operator -> (would be quantized, all).
        inputs: Of the model.
        outputs: Of the model.
        opset: Version of ai.onnx in the file.
        ir_version: IR version of the file.
        nbytes: File size, external data included.
        weight_bytes: Bytes of all constants.
        domains: Operator domains that the model imports.
        quantized: Nodes that would be quantized, absorbed ones included.
        total: Nodes of the prepared graph, those in subgraphs included.
        actions: What preparation would do to the float graph.
        target: What the model would be for.
        table: A row for each node with types, sources of scales and bytes, and the size that is to be expected.
    """

    nodes: list[tuple[str, str, str, str]]
    by_op: dict[str, tuple[int, int]]
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    opset: int
    ir_version: int
    nbytes: int
    weight_bytes: int
    domains: list[str]
    quantized: int
    total: int
    actions: tuple[str, ...] = ()
    target: str = DEFAULT_TARGET
    table: PlanTable | None = None

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""

        def rows(infos: tuple[TensorInfo, ...]) -> list[dict[str, Any]]:
            return [{"name": i.name, "dtype": i.dtype.name, "shape": list(i.shape)} for i in infos]

        return {
            "schema_version": 1,
            "opset": self.opset,
            "ir_version": self.ir_version,
            "domains": self.domains,
            "target": self.target,
            "bytes": self.nbytes,
            "weight_bytes": self.weight_bytes,
            "inputs": rows(self.inputs),
            "outputs": rows(self.outputs),
            "quantized": self.quantized,
            "total": self.total,
            "by_operator": {op: {"quantized": q, "total": n} for op, (q, n) in self.by_op.items()},
            "nodes": [
                {"node": n, "op_type": op, "decision": decision, "reason": reason}
                for n, op, decision, reason in self.nodes
            ],
            "actions": list(self.actions),
        } | (self.table.to_dict() if self.table is not None else {})


def _json_number(value: float) -> float | str:
    return value if value == value and abs(value) != float("inf") else str(value)
