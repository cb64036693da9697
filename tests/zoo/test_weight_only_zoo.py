"""Real models with stored weights: how small, how many products onnxruntime fuses, and how close to float."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnx
import pytest

import qtool
from qtool.api import QuantizeResult
from qtool.errors import ModelError
from qtool.runtime import create_session
from qtool.signal import sqnr_db
from tests.models import optimized_ops

pytestmark = pytest.mark.zoo

# what is looked at; one thread, as the suite runs one process per core
RUN = {"metrics": ["sqnr"], "latency": False, "checks": "none", "num_threads": 1}

# model -> products by a weight, least output SQNR in dB at int4 and int8
MODELS = {
    "chargpt_llama": (29, 27.0, 43.0),
    "minilm_l6_v2": (36, 11.0, 26.0),
    "whisper_tiny_en_encoder": (24, 15.0, 31.0),
    "digits_vit": (13, 25.0, 42.0),
}


VARIANTS = tuple((weights, nbits) for weights in ("int4", "int8") for nbits in (False, True))


class Stored(NamedTuple):
    """A model with stored weights, and how close it is to float."""

    path: Path
    result: QuantizeResult
    sqnr: float


@pytest.fixture(scope="module")
def stored(real, tmp_path_factory):
    """model -> by variant, what was made of it; the float model runs once for all of them."""
    folder = tmp_path_factory.mktemp("stored")

    @cache
    def made(name: str) -> dict[tuple[str, bool], Stored]:
        source = real.model(name)
        paths = [folder / f"{name}.{weights}.{nbits}.onnx" for weights, nbits in VARIANTS]
        results = [
            qtool.quantize(source, weight_only=True, weights=weights, matmul_nbits=nbits, output=path, num_threads=1)
            for (weights, nbits), path in zip(VARIANTS, paths, strict=True)
        ]
        reports = qtool.compare_models(
            source, paths, real.eval(name), metrics=["sqnr"], latency=False, num_threads=1
        ).reports
        values = [report.outputs[0].values["sqnr"] for report in reports]
        return dict(zip(VARIANTS, map(Stored, paths, results, values), strict=True))

    return made


@pytest.mark.parametrize("nbits", [False, True], ids=["dq", "nbits"])
@pytest.mark.parametrize("weights", ["int4", "int8"])
@pytest.mark.parametrize("name", MODELS)
def test_products_are_fused_small_and_close_to_float(name, weights, nbits, stored, tmp_path):
    products, at_int4, at_int8 = MODELS[name]
    path, result, sqnr = stored(name)[weights, nbits]
    kept = [w for d in result.plan.decisions if d.op_type in ("MatMul", "Gemm") for w in d.weights]
    assert len(kept) == products
    ratio = sum(w.bytes_after for w in kept) / sum(w.bytes_before for w in kept)
    assert ratio <= (0.17 if weights == "int4" else 0.29)
    fused = optimized_ops(onnx.load(path), tmp_path / "o.onnx")
    assert fused["MatMulNBits"] == products
    assert sqnr >= (at_int4 if weights == "int4" else at_int8)


@pytest.mark.parametrize(
    "options",
    [
        {"weights": "int2"},
        {"weights": "uint2"},
        {"weights": "float8e4m3fn"},
        {"weights": "float8e5m2", "block": 32},
        {"weights": "float4e2m1"},
        {"weights": "float4e2m1", "scale_type": "float8e8m0"},
        {"weights": "float8e4m3fn", "scale_type": "float8e8m0"},
    ],
    ids=lambda o: "-".join(map(str, o.values())),
)
@pytest.mark.parametrize("name", ["mnist_cnn", "digits_vit"])
def test_every_type_gives_the_same_numbers_wherever_it_runs(name, options, zoo, tmp_path):
    """The spec engine runs all of them; plain onnxruntime gives its numbers where it has the type."""
    path = tmp_path / "q.onnx"
    result = qtool.quantize(zoo / f"{name}.onnx", weight_only=True, output=path, **options)
    with np.load(zoo / f"{name}_eval.npz") as data:
        (name_of_input,) = (i.name for i in create_session(path, engine="spec").inputs)
        feeds = {name_of_input: data[name_of_input][:1].astype(np.float32)}
    lacking = any("cannot run the result" in note for note in result.notes)
    assert lacking == (options["weights"] == "float4e2m1" or "scale_type" in options)
    expected = create_session(path, engine="spec").run(feeds)
    if lacking:
        with pytest.raises(ModelError):
            create_session(path)
    else:
        got = create_session(path, optimize=False).run(feeds)
        assert all(sqnr_db(y, got[output]) > 90.0 for output, y in expected.items())


def test_convolutions_inside_branches_are_stored(zoo, tmp_path):
    result = qtool.quantize(zoo / "silero_vad.onnx", weight_only=True, weights="int8", output=tmp_path / "q.onnx")
    assert result.by_op["Conv"][0] == 10
    assert any("LSTM" in s.op_type and "recurrent" in s.reason for s in result.skips)
    data = zoo / "silero_vad_eval.npz"
    report = qtool.evaluate(zoo / "silero_vad.onnx", tmp_path / "q.onnx", data, **RUN)
    assert all(output.values["sqnr"] > 45.0 for output in report.outputs)
