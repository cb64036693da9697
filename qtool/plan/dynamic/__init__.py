"""Plans of dynamic mode: weights in 8 bits, activations quantized by the running model, no calibration data."""

from qtool.plan.dynamic.build import build_dynamic_plan

__all__ = ["build_dynamic_plan"]
