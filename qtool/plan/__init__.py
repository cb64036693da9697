"""Decide: from a prepared model, a config and statistics to a printable plan."""

from qtool.plan.build import build_plan, with_ranges_of
from qtool.plan.channels import wanted_of
from qtool.plan.dynamic import build_dynamic_plan
from qtool.plan.plan import BiasPlan, Decision, Form, Plan, Skip, WeightPlan
from qtool.plan.selection import Selection
from qtool.plan.tensor_methods import (
    in_place_of_auto,
    leaves_to_auto,
    need_histograms,
    refuse_unmatched,
    without_effect,
)
from qtool.plan.weights import check_finite

__all__ = [
    "BiasPlan",
    "Decision",
    "Form",
    "Plan",
    "Selection",
    "Skip",
    "WeightPlan",
    "build_dynamic_plan",
    "build_plan",
    "check_finite",
    "in_place_of_auto",
    "leaves_to_auto",
    "need_histograms",
    "refuse_unmatched",
    "wanted_of",
    "with_ranges_of",
    "without_effect",
]
