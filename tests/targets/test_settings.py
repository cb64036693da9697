"""What a target does to the configuration: its defaults, what it refuses, and what wins."""

from __future__ import annotations

from dataclasses import FrozenInstanceError

import pytest

from qtool import targets
from qtool.config import ACTIVATION_DTYPES, FORMATS, WEIGHT_DTYPES, QuantConfig
from qtool.errors import ConfigError
from qtool.targets import DEFAULT_TARGET, TARGETS
from qtool.targets.base import DOCUMENTED, MEASURED
from qtool.weight_settings import WEIGHT_ONLY_DTYPES

# format, activations, weights, per channel, symmetric
DEFAULTS = {
    "ort-x64": ("qlinear", "uint8", "int8", True, False),
    "avx2": ("qlinear", "uint8", "int8", True, False),
    "openvino": ("qdq", "uint8", "int8", True, False),
    "ort-arm": ("qlinear", "int8", "int8", True, True),
    "portable": ("qdq", "uint8", "int8", True, False),
    "qnn": ("qdq", "uint8", "int8", True, False),
    "tensorrt": ("qdq", "int8", "int8", True, True),
}


def resolved(config: QuantConfig) -> tuple[str, str, str, bool, bool]:
    return (config.format, config.activations, config.weights, config.per_channel, config.symmetric_activations)


def test_the_registry_holds_the_files_and_begins_with_the_default():
    assert list(TARGETS) == list(DEFAULTS)
    assert next(iter(TARGETS)) == DEFAULT_TARGET == QuantConfig().target
    with pytest.raises(FrozenInstanceError):
        TARGETS["qnn"].title = "other"  # type: ignore[misc]


@pytest.mark.parametrize("name", TARGETS)
def test_facts_are_values_that_the_rest_knows(name):
    facts = TARGETS[name]
    assert set(facts.formats) <= set(FORMATS)
    assert set(facts.activations) <= set(ACTIVATION_DTYPES)
    assert set(facts.weights) <= set(WEIGHT_DTYPES)
    assert set(facts.dynamic_weights) <= {"int8", "uint8"}
    assert set(facts.stored) <= set(WEIGHT_ONLY_DTYPES)
    assert facts.evidence in (MEASURED, DOCUMENTED)
    assert all(source.text for source in facts.sources)
    assert facts.evidence == MEASURED or any(source.address.startswith("https://") for source in facts.sources)


@pytest.mark.parametrize(("name", "expected"), DEFAULTS.items())
def test_a_target_decides_what_nobody_gives(name, expected):
    assert resolved(QuantConfig(target=name)) == expected
    assert resolved(QuantConfig().with_options(target=name)) == expected
    assert QuantConfig(target=name).to_dict()["target"] == name


def test_what_is_given_wins_whatever_the_order():
    wanted = ("qdq", "int8", "uint8", False, False)
    options = dict(
        zip(("format", "activations", "weights", "per_channel", "symmetric_activations"), wanted, strict=True)
    )
    at_once = QuantConfig(target="ort-arm", **options)
    assert resolved(at_once) == wanted
    assert QuantConfig(**options).with_options(target="ort-arm") == at_once
    assert QuantConfig(target="ort-arm").with_options(**options) == at_once


def test_a_copy_for_another_target_takes_its_defaults_but_keeps_what_was_given():
    config = QuantConfig(target="tensorrt", per_channel=False)
    assert resolved(config) == ("qdq", "int8", "int8", False, True)
    assert resolved(config.with_options(target="ort-x64")) == ("qlinear", "uint8", "int8", False, False)
    explicit = QuantConfig(format="qlinear")  # the default, but said
    with pytest.raises(ConfigError, match="target tensorrt takes qdq"):
        explicit.with_options(target="tensorrt")


def test_symmetry_is_a_default_of_the_type_that_the_target_prefers():
    assert not QuantConfig(target="ort-arm", activations="uint8").symmetric_activations
    assert QuantConfig(target="ort-arm", activations="uint8", symmetric_activations=True).symmetric_activations


def test_modes_without_calibration_take_the_types_of_the_target_alone():
    assert resolved(QuantConfig(target="ort-arm", dynamic=True)) == ("qlinear", "uint8", "int8", True, False)
    assert QuantConfig(target="avx2", dynamic=True).weights == "uint8"  # computed exactly there
    assert QuantConfig(target="avx2", dynamic=True, weights="int8").weights == "int8"
    assert QuantConfig(target="avx2").with_options(dynamic=True).weights == "uint8"
    assert QuantConfig(target="openvino", weight_only=True, weights="int4").block is None


def test_a_file_and_options_share_the_rules(tmp_path):
    (tmp_path / "c.toml").write_text('[quantize]\ntarget = "tensorrt"\nper-channel = false\n')
    read = QuantConfig.from_toml(tmp_path / "c.toml")
    assert resolved(read) == ("qdq", "int8", "int8", False, True)
    assert resolved(read.with_options(target="qnn")) == ("qdq", "uint8", "int8", False, False)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"target": "tensorrt", "format": "qlinear"}, "Option 'format' is 'qlinear'; target tensorrt takes qdq."),
        (
            {"target": "tensorrt", "activations": "uint8"},
            "Option 'activations' is 'uint8'; target tensorrt takes int8.",
        ),
        ({"target": "tensorrt", "weights": "uint8"}, "Option 'weights' is 'uint8'; target tensorrt takes int8."),
        ({"target": "tensorrt", "symmetric_activations": False}, "target tensorrt takes zero points of 0 only"),
        ({"target": "qnn", "activations": "int16"}, "Option 'activations' is 'int16'; target qnn takes uint8, uint16."),
        (
            {"target": "qnn", "weight_only": True},
            "Target qnn computes nothing with quantized weights alone; expected one",
        ),
        (
            {"target": "qnn", "dynamic": True},
            "Target qnn has no operators of dynamic mode; expected one of ort-x64, avx2",
        ),
        ({"target": "portable", "weights": "int4", "format": "qdq"}, "target portable takes int8, uint8."),
        ({"target": "portable", "weight_only": True, "weights": "int4"}, "target portable takes int8, uint8."),
        ({"target": "portable", "weight_only": True, "block": 32}, "Blocks of 32 need opset 21; target portable stays"),
        (
            {"target": "tensorrt", "overrides": [{"nodes": ["op:Conv"], "weights": "uint8"}]},
            "Option 'weights' is 'uint8'; target tensorrt takes int8.",
        ),
        (
            {"target": "openvino", "weight_only": True, "weights": "int8", "matmul_nbits": True},
            "Target openvino has no com.microsoft.MatMulNBits; expected one of ort-x64, avx2, ort-arm.",
        ),
    ],
)
def test_what_a_target_does_not_take_is_refused(options, said):
    with pytest.raises(ConfigError) as error:
        QuantConfig(**options)
    assert said in error.value.message
    assert error.value.hint


@pytest.mark.parametrize(
    ("name", "hint"),
    [("openvin", "Did you mean 'openvino'?"), ("ORT_ARM", "Did you mean 'ort-arm'"), ("gpu", None), (3, None)],
)
def test_an_unknown_target_names_all_and_the_nearest(name, hint):
    with pytest.raises(ConfigError) as error:
        QuantConfig(target=name)
    assert f"Option 'target' is {name!r}; expected one of {', '.join(TARGETS)}." == error.value.message
    assert bool(error.value.hint) == bool(hint)
    assert (error.value.hint or "").startswith(hint or "")


def test_lookup():
    assert targets.target("qnn") is TARGETS["qnn"]
