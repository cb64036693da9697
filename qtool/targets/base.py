"""What is known about a runtime: types, forms and rules that a file for it has to keep. Data only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

MEASURED = "measured here"
DOCUMENTED = "from documentation"

# what qtool can write with calibrated activations; a target that lists fewer types takes no others
ALL_ACTIVATIONS = ("uint8", "int8", "uint16", "int16")
ALL_WEIGHTS = (
    "int8",
    "uint8",
    "int16",
    "uint16",
    "int4",
    "uint4",
    "int2",
    "uint2",
    "float8e4m3fn",
    "float8e5m2",
)
ALL_STORED = (*(w for w in ALL_WEIGHTS if w not in ("int16", "uint16")), "float4e2m1")


@dataclass(frozen=True)
class Source:
    """Where a fact comes from.

    Attributes:
        text: What was measured, or the title of a document, or what it says.
        address: Of the document.
    """

    text: str
    address: str = ""


@dataclass(frozen=True)
class Target:
    """A runtime, or a kind of processor, that a quantized file is for. The first of several choices is the default.

    Attributes:
        name: What users call it.
        title: What it is, in a few words.
        formats: Forms of the graph that it reads.
        activations: Element types of activations.
        weights: Element types of weights beside quantized activations.
        stored: Element types in weight-only mode; empty if that mode is not for this target.
        symmetric_activations: Whether the zero point of activations of the default type is fixed by default.
        zero_points: Whether zero points other than 0 are taken at all.
        per_tensor_weights: Operators whose weights have one scale, not one per channel.
        int32_bias: Whether a bias may be stored as int32 behind a DequantizeLinear; it stays float otherwise.
        convs_write_codes: Whether an integer Conv always writes codes, so that what follows it had better read codes. A
            runtime that fuses float followers into its Convs wants a QuantizeLinear only where codes are read.
        shared_convs_write_codes: Whether a Conv without a bias whose result is read more than once writes codes
            nevertheless, because the runtime gets it wrong otherwise.
        quantized_residuals: Whether the skip connection that is added to a Conv's result is quantized, which lets the
            runtime compute the sum inside of the Conv.
        left_float: Operators that qtool leaves in float for this target, with the reason.
        dynamic_weights: Element types of weights in dynamic mode; empty if it does not have the operators of that mode.
        microsoft_operators: Whether it has the operators of the domain com.microsoft.
        max_opset: The highest opset of ai.onnx that a file should have, if there is such a limit.
        saturating_pairs: Whether its 8-bit product adds two neighbouring products in int16, which saturates.
        evidence: Where the facts come from.
        sources: What was measured, or which documents say so.
    """

    name: str
    title: str
    formats: tuple[str, ...]
    activations: tuple[str, ...]
    weights: tuple[str, ...]
    stored: tuple[str, ...]
    evidence: str
    sources: tuple[Source, ...]
    symmetric_activations: bool = False
    zero_points: bool = True
    per_tensor_weights: frozenset[str] = frozenset()
    int32_bias: bool = True
    convs_write_codes: bool = True
    shared_convs_write_codes: bool = False
    quantized_residuals: bool = False
    left_float: Mapping[str, str] = field(default_factory=dict)
    dynamic_weights: tuple[str, ...] = ()
    microsoft_operators: bool = False
    max_opset: int | None = None
    saturating_pairs: bool = False

    def default_symmetry(self, activations: str) -> bool:
        """Whether the zero point of activations of a type is fixed if nobody says so."""
        return not self.zero_points or (self.symmetric_activations and activations == self.activations[0])
