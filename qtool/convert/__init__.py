"""Quantized models in another form: operators on codes, QDQ, or float with dequantized weights; and what differs."""

from __future__ import annotations

from qtool.convert.convert import FORMS, Conversion, convert_model
from qtool.convert.difference import Difference, difference
from qtool.convert.parameters import Parameters, QuantizedTensor, parameters_of

__all__ = [
    "FORMS",
    "Conversion",
    "Difference",
    "Parameters",
    "QuantizedTensor",
    "convert_model",
    "difference",
    "parameters_of",
]
