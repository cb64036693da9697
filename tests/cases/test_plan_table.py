"""The plan as a table: what becomes of each node, where scales come from, and bytes that the real file then has."""

from __future__ import annotations

import json

import numpy as np
import onnx
import pytest

import qtool
from tests.cases.test_overrides import NET, X
from tests.ended import run_command
from tests.models import FORMATS, build, normal


def initializer_bytes(model: onnx.ModelProto) -> int:
    return sum(len(t.raw_data) for t in model.graph.initializer)


MATRICES = build(
    """m (int64[N] ids) => (float[N,32] y) {
        [table] e = Gather(words, ids)
        [fc1] h = MatMul(e, w1)
        [act] g = Sigmoid(h)
        [fc2] y = Gemm<transB = 1>(g, w2, b2)
    }""",
    {
        "words": normal(64, 96, seed=1), "w1": normal(96, 80, seed=2), "w2": normal(32, 80, seed=3),
        "b2": normal(32, seed=4),
    },
    opset=21,
    ir_version=10,
)  # fmt: skip
SETTINGS = [
    *({"format": f} for f in FORMATS),
    {"format": "qdq", "per_channel": False, "activations": "uint16"},
    {"format": "qlinear", "symmetric_activations": True},
    {"dedicated_qdq": True, "format": "qdq", "method": "mse"},
    {"overrides": [{"nodes": ["head_fc1"], "weights": "int4"}, {"nodes": ["op:Conv"], "format": "qdq"}]},
    {"dynamic": True},
]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_predicted_bytes_are_those_of_the_file(settings, tmp_path):
    dry = qtool.quantize(NET, dry_run=True, **settings)
    real = qtool.quantize(NET, X, output=tmp_path / "q.onnx", **settings)
    assert dry.table is not None
    assert dry.table.forecast is not None
    found = initializer_bytes(onnx.load(real.model_path))
    if settings.get("symmetric_activations"):
        # what goes into a Relu and what comes out have the same largest value, and so share scale and zero point
        found += 10
    assert dry.table.forecast.initializer_bytes == found
    assert sum(row.bytes_after for row in dry.table.rows) == dry.table.forecast.initializer_bytes
    assert sum(row.bytes_before for row in dry.table.rows) == initializer_bytes(NET)
    # hashes and the number of samples are not known before
    assert abs(dry.table.forecast.file_bytes - real.bytes_after) <= 200
    assert real.table is None


@pytest.mark.parametrize(
    "settings",
    [{"weights": w} for w in ("int8", "uint4", "float8e4m3fn")]
    + [{"weights": "int4", "matmul_nbits": True}, {"weights": "float4e2m1", "scale_type": "float8e8m0"}],
    ids=str,
)
def test_predicted_bytes_in_weight_only_mode(settings, tmp_path):
    dry = qtool.quantize(MATRICES, weight_only=True, dry_run=True, **settings)
    real = qtool.quantize(MATRICES, weight_only=True, output=tmp_path / "q.onnx", **settings)
    assert dry.table.forecast.initializer_bytes == initializer_bytes(onnx.load(real.model_path))
    assert abs(dry.table.forecast.file_bytes - real.bytes_after) <= 200
    assert sum(row.bytes_after for row in dry.table.rows) == dry.table.forecast.initializer_bytes


def test_inspect_predicts_the_same():
    found = qtool.inspect(NET)
    dry = qtool.quantize(NET, dry_run=True)
    assert found.table.forecast == dry.table.forecast
    assert found.table.rows == dry.table.rows


def test_with_statistics_the_plan_is_the_real_one(tmp_path):
    qtool.calibrate(NET, X, output=tmp_path / "s.npz")
    dry = qtool.quantize(NET, stats=tmp_path / "s.npz", dry_run=True)
    real = qtool.quantize(NET, stats=tmp_path / "s.npz")
    assert dry.plan.tensors == real.plan.tensors
    assert dry.table.forecast.initializer_bytes == initializer_bytes(real.model)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"per_channel": False},
        {"target": "qnn"},
        {"overrides": [{"nodes": ["stem_conv"], "per_channel": False}, {"nodes": ["head_fc1"], "weights": "int4"}]},
    ],
    ids=str,
)
def test_sources_of_weights_are_the_same_before_and_after_calibration(settings, tmp_path):
    qtool.calibrate(NET, X, output=tmp_path / "s.npz", target=settings.get("target"))
    before, after = (
        {
            row.node: [s for s in row.scales if s.role == "weight"]
            for row in qtool.quantize(NET, stats=stats, dry_run=True, **settings).table.rows
        }
        for stats in (None, tmp_path / "s.npz")
    )
    assert before == after
    assert sum(map(len, before.values())) >= 4


@pytest.mark.zoo
@pytest.mark.parametrize("name", ["digits_resnet_bn", "digits_vit"])
def test_predicted_bytes_of_a_real_model(name, zoo, tmp_path):
    dry = qtool.quantize(zoo / f"{name}.onnx", dry_run=True)
    real = qtool.quantize(zoo / f"{name}.onnx", zoo / f"{name}_calib.npz", samples=16, output=tmp_path / "q.onnx")
    # where ranges decide (a Concat that cannot share its scale) the graph may differ a little
    assert abs(dry.table.forecast.file_bytes / real.bytes_after - 1) < 0.01


def test_rows():
    rows = {row.node: row for row in qtool.quantize(NET, dry_run=True, method="mse").table.rows}
    assert list(rows) == [node.name for node in NET.graph.node]
    stem, pool, head = rows["stem_conv"], rows["stem_pool"], rows["head_fc2"]
    assert (stem.decision, stem.becomes, stem.activations, stem.weights) == ("quantize", "operator", "uint8", "int8")
    assert [(s.tensor, s.role, s.dtype, s.source) for s in stem.scales] == [
        ("x", "input", "uint8", "calibrated (mse)"),
        ("b", "output", "uint8", "calibrated (mse)"),
        ("w1", "weight", "int8", "absmax per channel"),
        ("b1", "bias", "int32", "scale of the input times that of the weight"),
    ]
    assert stem.bytes_before == 4 * (4 * 27 + 4)
    # codes, scales and zero points of the weight; codes of the bias; scale and zero point of x and of the result
    assert stem.bytes_after in (108 + 4 * 4 + 4 + 4 * 4 + 5 + 5, 108 + 4 * 4 + 4 + 4 * 4 + 5)
    assert rows["stem_relu"].becomes == "part of stem_conv"
    assert pool.sources == "input calibrated (mse); output shared with 'b'"
    assert head.activations == "uint8"


def test_sources_of_all_kinds():
    model = build(
        """m (float[N,4,6,6] x) => (float[N,4] y) {
            [c] a = Conv(x, w1)
            [s] b = Sigmoid(a)
            [m] d = Mul(a, b)
            [t] e = Mul(d, half)
            [g] f = GlobalAveragePool(e)
            [r] h = Flatten(f)
            [p] i = MatMul(h, w2)
            [n] y = Neg(i)
        }""",
        {"w1": normal(4, 4, 3, 3), "w2": normal(4, 4, seed=1), "half": np.full((1, 4, 1, 1), 0.5, np.float32)},
    )
    rows = {row.node: row for row in qtool.quantize(model, dry_run=True).table.rows}
    assert rows["s"].sources == "input calibrated (auto); output fixed by Sigmoid"
    assert "weight range of the constant" in rows["t"].sources
    assert rows["p"].activations == "uint8 -> float"
    assert (rows["n"].decision, rows["n"].becomes, rows["n"].activations) == ("float", "float", "")
    assert rows["n"].reason
    dynamic = {row.node: row for row in qtool.quantize(model, dry_run=True, dynamic=True).table.rows}
    assert dynamic["p"].sources == "input measured by the running model; weight absmax per channel"
    mixed = qtool.quantize(model, dry_run=True, format="qdq", overrides=[{"nodes": ["p"], "activations": "uint16"}])
    row = {row.node: row for row in mixed.table.rows}["p"]
    assert (row.activations, row.reason, row.becomes) == (
        "uint16 -> float", "override: activations uint16", "operator (qdq)",
    )  # fmt: skip


def test_the_commands(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    onnx.save(NET, "m.onnx")
    np.savez("c.npz", **X)
    ended = run_command(capsys, "inspect", "m.onnx", "--show", "quantized")
    assert ended.code == 0
    (line,) = [line.split() for line in ended.out.splitlines() if line.startswith("head_fc1")]
    assert line[:5] == ["head_fc1", "MatMul", "operator", "uint8", "int8"]
    assert "would be the size of the file" in ended.out
    assert "in all" in ended.out
    document = json.loads(run_command(capsys, "inspect", "m.onnx", "--json", "-").out)
    assert document["predicted"]["initializer_bytes"] == sum(n["bytes_after"] for n in document["nodes"])
    assert {n["node"]: n["weights"] for n in document["nodes"]}["mid_conv"] == "int8"
    assert document["operators"][0]["op_type"] == "MatMul"
    assert document["opset"] == 21
    base = ["quantize", "m.onnx", "--calib", "c.npz", "--exclude", "head_fc2"]
    ended = run_command(capsys, *base, "--dry-run", "--show", "skipped")
    rows = [line for line in ended.out.splitlines() if line.startswith("head_")]
    assert len(rows) == 1
    assert rows[0].endswith("excluded by 'head_fc2'")
    assert "expected" in ended.err
    document = json.loads(run_command(capsys, *base, "--dry-run", "--json", "-").out)
    assert document["table"]["predicted"]["file_bytes"] > 0
    for args, said in (
        ((*base, "--show", "all"), "is about the plan that --dry-run shows"),
        (("inspect", "m.onnx", "--show", "x"), "Option --show is 'x'; expected quantized, skipped or all."),
    ):
        ended = run_command(capsys, *args)
        assert ended.code == 2
        assert said in ended.err
