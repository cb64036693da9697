"""Decisions, skips with reasons, the fixed point over demand, selection, and every operator that has a handler."""

from __future__ import annotations

import json
from collections.abc import Mapping

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import qtool
from qtool.calibrate.methods import METHODS
from qtool.calibrate.statistics import Statistics, TensorStatistics
from qtool.config import QuantConfig
from qtool.errors import ConfigError
from qtool.plan import Decision, Form, Plan, Selection, Skip, build_plan
from qtool.plan.ops import handlers
from qtool.plan.ops.base import Phase
from qtool.plan.ranges import fixed_range, shared_groups
from qtool.prepare.load import load_model
from qtool.prepare.prepare import prepare
from tests.fusion import check_fusion
from tests.models import FORMATS, Arrays, build, normal, quantize_and_check, run

NONE = Selection(QuantConfig(), [])


def plan_of(model: onnx.ModelProto, samples: Arrays | None = None, **options: object) -> Plan:
    """The plan of a model: before calibration, or with statistics of ``samples``."""
    config = QuantConfig().with_options(**options)
    prepared = prepare(load_model(model), min_opset=13, min_ir=7, bodies=True, captures=True)
    selection = Selection(config, [(n.name, n.op_type) for n in prepared.source_nodes])
    plan = build_plan(prepared.model, config, selection)
    if samples is None:
        return plan
    proto = ir.to_proto(prepared.model)
    del proto.graph.output[:]
    proto.graph.output.extend(onnx.ValueInfoProto(name=name) for name in plan.tensors if name not in samples)
    for value in proto.graph.output:
        value.type.tensor_type.elem_type = onnx.TensorProto.FLOAT
    found = {**samples, **run(proto, samples)}
    statistics = Statistics({name: TensorStatistics.of(found[name], histogram=True) for name in plan.tensors}, 1)
    return build_plan(prepared.model, config, selection, statistics)


MLP = build(
    """m (float[N,16] x) => (float[N,4] y) {
        [a] h = Gemm(x, w1, b1)
        [r] g = Relu(h)
        [b] i = Gemm(g, w2)
        [s] y = Softmax(i)
    }""",
    {"w1": normal(16, 32), "b1": normal(32), "w2": normal(32, 4)},
)


# ---------------------------------------------------------------------------------------------------------- decisions


def test_a_plan_without_statistics_names_the_tensors_to_calibrate():
    plan = plan_of(MLP)
    assert list(plan.tensors) == ["x", "g"]
    assert set(plan.tensors.values()) == {None}
    first, second = plan.decisions
    assert (first.node, first.form, first.inputs, first.outputs) == ("a", Form.OPERATOR, ((0, "x"),), ("g",))
    assert (first.absorbed, first.clip) == (("r",), "r")
    assert first.bias is not None
    assert (first.bias.tensor, first.bias.node, first.bias.index) == ("b1", "a", 2)
    assert [w.axis for w in first.weights] == [1]
    assert (second.node, second.outputs, second.bias) == ("b", (), None)  # a Softmax reads its float result
    reason = "codes are too coarse for small probabilities, so it stays float"
    assert plan.skips == (Skip("s", "Softmax", reason, expected=True),)
    assert (plan.nodes, plan.quantized) == (4, 3)
    assert plan.by_operator() == {"Gemm": (2, 2), "Relu": (1, 1), "Softmax": (0, 1)}


def test_the_same_decisions_with_statistics():
    before, after = plan_of(MLP), plan_of(MLP, {"x": normal(8, 16)})
    assert list(after.tensors) == list(before.tensors)
    assert all(p is not None for p in after.tensors.values())
    assert [(d.node, d.inputs, d.outputs) for d in after.decisions] == [
        (d.node, d.inputs, d.outputs) for d in before.decisions
    ]
    assert all(w.params is not None for d in after.decisions for w in d.weights)


@pytest.mark.parametrize("samples", [None, {"x": normal(8, 16)}])
def test_plans_are_deterministic_and_json(samples: Mapping[str, np.ndarray] | None):
    one, two = plan_of(MLP, samples).to_dict(), plan_of(MLP, samples).to_dict()
    assert one == two
    assert json.loads(json.dumps(one, allow_nan=False)) == one
    assert one["quantized"] == 3
    assert [row["decision"] for row in [*one["decisions"], *one["skips"]]] == ["quantize", "quantize", "float"]


def test_the_model_is_only_read():
    prepared = prepare(load_model(MLP), min_opset=13, min_ir=7)
    before = ir.to_proto(prepared.model).SerializeToString(deterministic=True)
    build_plan(prepared.model, QuantConfig(), NONE)
    assert ir.to_proto(prepared.model).SerializeToString(deterministic=True) == before


def test_branches_of_if_are_planned_with_values_of_their_own_for_what_they_capture():
    model = build(
        """m (float[N,4] x, bool c) => (float[N,4] y) {
            [mm] h = MatMul(x, w)
            [if] y = If(c) <then_branch = t () => (float[N,4] a) { [inner] a = MatMul(h, w) },
                           else_branch = e () => (float[N,4] b) { b = Identity(h) }>
        }""",
        {"w": normal(4, 4)},
    )
    plan = plan_of(model)
    assert plan.nodes == 4
    assert [d.node for d in plan.decisions] == ["mm", "inner"]
    assert plan.decisions[0].outputs == ()  # the subgraphs read its float result
    assert plan.decisions[1].inputs == ((0, "h_captured"),)
    assert [(s.op_type, s.reason) for s in plan.skips] == [
        ("If", "the nodes inside its subgraphs are decided one by one"),
        ("Identity", "no quantized operator reads its output"),
    ]


def test_nodes_in_the_body_of_a_loop_are_counted_and_stay_float():
    model = build(
        """m (int64 n, float[4,4] x) => (float[4,4] y) {
            t = Constant<value = bool {1}>()
            [loop] y = Loop(n, t, x) <body = l (int64 i, bool go, float[4,4] s) => (bool go_on, float[4,4] next) {
                go_on = Identity(go)
                [inner] next = MatMul(s, w)
            }>
        }""",
        {"w": normal(4, 4)},
    )
    plan = plan_of(model)
    assert (plan.nodes, plan.decisions) == (3, ())
    why = "it is inside the body of a Loop, whose activations are not calibrated"
    assert [(s.op_type, s.reason, s.expected) for s in plan.skips] == [
        ("Loop", "the nodes inside its subgraphs stay float", False),
        ("Identity", why, True),
        ("MatMul", why, False),
    ]


# -------------------------------------------------------------------------------------------- reasons, and the fixpoint

SKIPS = {
    "conv weight": ("y = Conv(x, v, q)", "its weight is not constant, and it has a bias", False),
    "conv bias": ("y = Conv(x, w, q)", "its bias is not constant", False),
    "lone relu": ("y = Relu(x)", "no quantized operator wants its output", True),
    "add": ("y = Add(x, x)", "no quantized operator wants its output", True),
    "mover": ("y = Transpose(x)", "no quantized operator reads its output", True),
    "linear resize": ('y = Resize<mode="linear">(x, , scales)', "only nearest-neighbour Resize moves codes", True),
    "no handler": ("y = Bernoulli(x)", "no handler for this operator", False),
    "pad": ("y = Pad(x, pads, seven)", "it pads with something else than a constant 0", True),
    "relu before conv": (
        "r = Relu(x) y = Conv(r, w)",
        "its input exists in float; the QuantizeLinear behind it saturates",
        True,
    ),
    "add before conv": (
        "r = Add(x, x) y = Conv(r, w)",
        "its inputs exist in float; quantizing them would only lose accuracy",
        True,
    ),
}


@pytest.mark.parametrize("case", SKIPS)
def test_reasons(case):
    body, reason, expected = SKIPS[case]
    extra = (", float[4,4,3,3] v" if "v," in body else "") + (", float[4] q" if "q)" in body else "")
    arrays = {
        "w": normal(4, 4, 3, 3), "scales": np.array([1, 1, 2, 2], np.float32), "seven": np.float32(7),
        "pads": np.array([0, 0, 1, 1, 0, 0, 1, 1]),
    }  # fmt: skip
    used = {
        name: array
        for name, array in arrays.items()
        if f"{name}" in body.replace("(", " ").replace(",", " ").replace(")", " ").split()
    }
    model = build(f"m (float[N,4,6,6] x{extra}) => (float[a,b,c,d] y) {{ {body} }}", used)
    first = plan_of(model).skips[0]
    assert (first.reason, first.expected) == (reason, expected)


def test_a_custom_domain_is_named():
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 17, "acme": 1]> m (float[N,4] x) => (float[N,4] y) {
            [mm] h = MatMul(x, w)
            [own] y = acme.Magic(h)
        }"""
    )
    model.graph.initializer.append(onnx.numpy_helper.from_array(normal(4, 4), "w"))
    assert plan_of(model).skips == (Skip("own", "Magic", "operator of the domain 'acme'", expected=False),)


def test_a_conv_that_does_not_pay_takes_its_followers_with_it():
    """Depthwise with a float reader: taken back, and so is the Transpose that only moved its codes' input."""
    model = build(
        """m (float[1,6,6,8] x) => (float[1,8,4,4] y) {
            [t] t = Transpose<perm=[0,3,1,2]>(x)
            [c] h = Conv<group=8>(t, w)
            [e] y = Elu(h)
        }""",
        {"w": normal(8, 1, 3, 3)},
    )
    plan = plan_of(model)
    assert plan.decisions == ()
    assert plan.tensors == {}
    assert {s.node: s.reason for s in plan.skips} == {
        "t": "no quantized operator reads its output",
        "c": "only float operators read its output, and less than 32 products per element do not pay",
        "e": "the runtime has no integer form of it",
    }


@pytest.mark.parametrize(
    ("z", "why"),
    [
        (np.full((8, 4), np.nan, np.float32), "'z' had no finite value in the calibration data"),
        (np.zeros((0, 4), np.float32), "'z' was never produced by the calibration data"),
    ],
)
def test_a_tensor_without_values_stays_float_with_the_reason(z, why):
    """All NaN, which only --on-nan skip lets through, and empty."""
    model = build(
        "m (float[N,4] x, float[M,4] z) => (float[N,4] y, float[M,4] u) { [a] y = MatMul(x, w) [b] u = MatMul(z, w) }",
        {"w": np.eye(4, dtype=np.float32)},
    )
    plan = plan_of(model, {"x": normal(8, 4), "z": z})
    assert [d.node for d in plan.decisions] == ["a"]
    assert plan.skips == (Skip("b", "MatMul", why),)


@pytest.mark.parametrize(("value", "scale", "zero"), [(0.0, 1.0, 0), (51.0, 0.2, 0), (-51.0, 0.2, 255)])
@pytest.mark.parametrize("method", METHODS)
def test_a_constant_tensor(method, value, scale, zero):
    model = build("m (float[N,4] x) => (float[N,4] y) { [a] y = MatMul(x, w) }", {"w": np.eye(4, dtype=np.float32)})
    plan = plan_of(model, {"x": np.full((8, 4), value, np.float32)}, method=method)
    params = plan.tensors["x"]
    assert (float(params.scale), int(params.zero_point)) == (pytest.approx(scale), zero)


def test_methods_of_single_tensors():
    model = build(
        "m (float[N,4] x, float[N,4] z) => (float[N,4] y, float[N,4] u) { [a] y = MatMul(x, w) [b] u = MatMul(z, w) }",
        {"w": np.eye(4, dtype=np.float32)},
    )
    data = {"x": normal(4000, 4, seed=1) ** 3, "z": normal(4000, 4, seed=2) ** 3}

    def scales(**options):
        tensors = plan_of(model, data, **options).tensors
        return [float(tensors[name].scale) for name in ("x", "z")]

    whole, mild = scales(method="minmax"), scales(method="percentile:99")
    assert scales(method="minmax", tensor_methods={"z": "percentile:99"}) == [whole[0], mild[1]]
    assert scales(method="percentile:99", tensor_methods={"*": "mse", "[xz]": "minmax"}) == whole
    assert scales(method="minmax", tensor_methods=[("q", "mse")]) == whole


def test_tensors_that_share_parameters_share_a_method():
    model = build(
        "m (float[N,4] x) => (float[4,N] y) { [t] h = Transpose<perm=[1,0]>(x) [a] y = MatMul(w, h) }",
        {"w": np.eye(4, dtype=np.float32)},
    )
    data = {"x": normal(4000, 4, seed=1) ** 3}
    for pattern in ("x", "h"):
        plan = plan_of(model, data, method="minmax", tensor_methods={pattern: "percentile:99"})
        expected = plan_of(model, data, method="percentile:99").tensors
        assert plan.tensors["x"] == plan.tensors["h"] == expected["x"]
        assert plan.tensors["y"] != expected["y"]


@pytest.mark.parametrize(("percent", "said"), [("99.99", True), ("99", False)])
def test_too_few_values_for_a_percentile_are_said(percent, said):
    model = build("m (float[N,4] x) => (float[N,4] y) { [a] y = MatMul(x, w) }", {"w": np.eye(4, dtype=np.float32)})
    plan = plan_of(model, {"x": normal(400, 4)}, method=f"percentile:{percent}")
    expected = (
        "percentile:99.99 cuts less than one of the 1600 values of 'x' (and of 1 more tensors): "
        "its range is all but that of minmax. "
        "Calibrate on more samples, or use a lower percentile"
    )
    assert plan.notes == ((expected,) if said else ())


def test_a_tensor_with_infinities_vetoes_its_node_and_no_other():
    model = build(
        "m (float[N,4] x, float[N,4] z) => (float[N,4] y, float[N,4] u) { [a] y = MatMul(x, w) [b] u = MatMul(z, w) }",
        {"w": np.eye(4, dtype=np.float32)},
    )
    plan = plan_of(model, {"x": normal(8, 4), "z": np.full((8, 4), -np.inf, np.float32)})
    assert [d.node for d in plan.decisions] == ["a"]
    assert plan.skips == (Skip("b", "MatMul", "'z' holds infinities, which no range can hold"),)


def test_only_what_is_wanted_is_quantized():
    """A residual stream of float Adds stays float around the product that reads it."""
    model = build(
        """m (float[N,4] x) => (float[N,4] y) {
            [ln] n = LayerNormalization(x, g, o)
            [a] h = MatMul(n, w)
            [add] r = Add(x, h)
            [ln2] m = LayerNormalization(r, g, o)
            [b] i = MatMul(m, w)
            [add2] y = Add(r, i)
        }""",
        {"g": np.ones(4, np.float32), "o": np.zeros(4, np.float32), "w": normal(4, 4)},
    )
    plan = plan_of(model)
    assert list(plan.tensors) == ["n", "m"]
    assert [(d.node, d.outputs) for d in plan.decisions] == [("a", ()), ("b", ())]
    assert all(s.expected for s in plan.skips)


def test_one_group_for_movers():
    decisions = [
        Decision("a", "Reshape", Form.MOVER, ((0, "t"),), ("u",)),
        Decision("b", "Concat", Form.MOVER, ((0, "u"), (1, "v")), ("w",)),
        Decision("c", "Add", Form.ELEMENTWISE, ((0, "w"), (1, "x")), ("y",)),
    ]
    assert shared_groups(decisions, ["t", "u", "v", "w", "x", "y"]) == [["t", "u", "v", "w"], ["x"], ["y"]]


def test_fixed_ranges():
    from qtool.dtypes import qdtype
    from qtool.qparams import activation_qparams

    def pair(op: str, name: str, *, symmetric: bool = False) -> tuple[float, int]:
        found = fixed_range(op, qdtype(name), symmetric=symmetric)
        assert found is not None
        params = activation_qparams(*found, qdtype(name), symmetric=symmetric)
        return float(params.scale), int(params.zero_point)

    assert pair("Softmax", "uint8") == (1 / 256, 0)
    assert pair("Softmax", "int8") == (1 / 256, -128)
    assert pair("Sigmoid", "uint8") == (1 / 256, 0)
    assert pair("Tanh", "uint8") == (1 / 128, 128)
    assert pair("Tanh", "int8") == (1 / 128, 0)
    assert pair("Softmax", "int16", symmetric=True) == (float(np.float32(1 / 32767)), 0)
    assert fixed_range("Relu", qdtype("uint8"), symmetric=False) is None


# ---------------------------------------------------------------------------------------------------------- selection

NODES = [("layer1/conv", "Conv"), ("layer1/relu", "Relu"), ("layer2/conv", "Conv"), ("head", "Gemm")]


@pytest.mark.parametrize(
    ("option", "pattern", "message", "hint"),
    [
        ("exclude", "layer1/con", "--exclude 'layer1/con' matches no node of the model.", "'layer1/conv'"),
        ("include", "haed", "--include 'haed' matches no node of the model.", "Nearest: 'head'."),
        ("exclude", "op:conv", "--exclude 'op:conv' matches no node of the model.", "op:Conv"),
        ("exclude", "Conv", "--exclude 'Conv' matches no node of the model.", "Did you mean 'op:Conv'?"),
        ("include", "zzz*", "--include 'zzz*' matches no node of the model.", "qtool inspect"),
        ("exclude", "op:LSTM", "--exclude 'op:LSTM' matches no node of the model.", "op:"),
    ],
)
def test_a_pattern_without_a_match_names_the_nearest(option, pattern, message, hint):
    with pytest.raises(ConfigError) as caught:
        Selection(QuantConfig(**{option: (pattern,)}), NODES)
    assert caught.value.message == message
    assert hint in (caught.value.hint or "")
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("include", "exclude", "selected"),
    [
        ((), (), ["layer1/conv", "layer1/relu", "layer2/conv", "head"]),
        (("op:Conv",), (), ["layer1/conv", "layer2/conv"]),
        (("layer1/*",), (), ["layer1/conv", "layer1/relu"]),
        ((), ("layer?/conv",), ["layer1/relu", "head"]),
        (("op:Conv", "head"), ("layer2/*",), ["layer1/conv", "head"]),
        ((), ("op:*e*",), ["layer1/conv", "layer2/conv"]),
    ],
)
def test_selection(include, exclude, selected):
    selection = Selection(QuantConfig(include=include, exclude=exclude), NODES)
    nodes = [ir.node(op, [], name=name) for name, op in NODES]
    assert [n.name for n in nodes if selection.reason_to_skip(n) is None] == selected


def test_reasons_of_a_selection():
    selection = Selection(QuantConfig(include=("op:Conv",), exclude=("layer1/*",)), NODES)
    assert selection.reason_to_skip(ir.node("Conv", [], name="layer1/conv")) == "excluded by 'layer1/*'"
    assert selection.reason_to_skip(ir.node("Gemm", [], name="head")) == "not among the included nodes"


def test_a_name_with_brackets_is_taken_literally():
    selection = Selection(QuantConfig(exclude=("conv[1]",)), [("conv[1]", "Conv"), ("conv1", "Conv")])
    assert selection.reason_to_skip(ir.node("Conv", [], name="conv[1]")) == "excluded by 'conv[1]'"


def test_a_node_that_stands_for_several_is_found_by_any_of_them():
    model = build(
        """m (float[N,4,6,6] x) => (float[N,4,4,4] y) {
            [c] h = Conv(x, w)
            [bn] y = BatchNormalization(h, g, o, o, g)
        }""",
        {"w": normal(4, 4, 3, 3), "g": np.ones(4, np.float32), "o": np.zeros(4, np.float32)},
    )
    assert len(plan_of(model).decisions) == 1
    for name in ("c", "bn"):
        plan = plan_of(model, exclude=(name,))
        assert plan.decisions == ()
        assert plan.skips[0].reason == f"excluded by '{name}'"


# ------------------------------------------------------------------------------------------------------- the registry

# operator -> (body between two Convs or alone, extra initializers, channels that the second Conv reads)
MODELS: dict[str, tuple[str, dict[str, np.ndarray], int]] = {
    "Relu": ("Relu(a)", {}, 4),
    "Clip": ("Clip(a, lo, hi)", {"lo": np.float32(0), "hi": np.float32(2)}, 4),
    "Add": ("Add(a, a)", {}, 4),
    "Mul": ("Mul(a, k)", {"k": normal(1, 4, 6, 6, seed=9)}, 4),
    "AveragePool": ("AveragePool<kernel_shape=[2,2]>(a)", {}, 4),
    "GlobalAveragePool": ("GlobalAveragePool(a)", {}, 4),
    "Sigmoid": ("Sigmoid(a)", {}, 4),
    "LeakyRelu": ("LeakyRelu<alpha=0.1>(a)", {}, 4),
    "Concat": ("Concat<axis=1>(a, a)", {}, 8),
    "MaxPool": ("MaxPool<kernel_shape=[2,2], strides=[2,2], ceil_mode=1, pads=[0,0,1,1]>(a)", {}, 4),
    "Reshape": ("Reshape(a, k)", {"k": np.array([-1, 2, 12, 6])}, 2),
    "Transpose": ("Transpose<perm=[0,2,1,3]>(a)", {}, 6),
    "Squeeze": ("Squeeze(a5, k)", {"k": np.array([4])}, 4),
    "Unsqueeze": ("Unsqueeze(a3, k)", {"k": np.array([3])}, 4),
    "Flatten": ("Flatten(a)", {}, 144),
    "Slice": ("Slice(a, k, e)", {"k": np.array([0, 1]), "e": np.array([9, 4])}, 3),
    "Split": ("Split<axis=1>(a, k)", {"k": np.array([1, 3])}, 1),
    "Gather": ("Gather<axis=1>(a, k)", {"k": np.array([3, 0])}, 2),
    "Expand": ("Expand(a, k)", {"k": np.array([1, 1, 6, 6])}, 4),
    "Tile": ("Tile(a, k)", {"k": np.array([1, 2, 1, 1])}, 8),
    "DepthToSpace": ("DepthToSpace<blocksize=2>(a)", {}, 1),
    "SpaceToDepth": ("SpaceToDepth<blocksize=2>(a)", {}, 16),
    "Resize": ('Resize<mode="nearest">(a, , k)', {"k": np.array([1, 1, 2, 2], np.float32)}, 4),
    "ReduceMax": ("ReduceMax<axes=[2], keepdims=1>(a)", {}, 4),
    "Pad": ("Pad(a, k)", {"k": np.array([0, 1, 0, 0, 0, 0, 0, 0])}, 5),  # of channels: no Conv can take it over
    "ReduceMin": ("ReduceMin<axes=[2], keepdims=1>(a)", {}, 4),
    "GatherElements": ("GatherElements<axis=2>(a, k)", {"k": np.arange(4 * 3 * 6).reshape(1, 4, 3, 6) % 6}, 4),
    "GatherND": ("GatherND(a, k)", {"k": np.array([[[0, 3], [0, 1], [0, 2]]])}, 3),
    "ReverseSequence": ("ReverseSequence<batch_axis=1, time_axis=0>(a, k)", {"k": np.ones(4, np.int64)}, 4),
    "Compress": ("Compress<axis=1>(a, k)", {"k": np.array([True, False, True])}, 2),
    "Where": ("Where(k, a, l)", {"k": normal(4, 6, 6, seed=3) > 0, "l": normal(4, 1, 1, seed=4)}, 4),
    "Identity": ("Identity(a)", {}, 4),
    "Div": ("Div(m, k)", {"k": np.float32(6)}, 4),  # of a product: it becomes part of that
}
ALONE = {
    "MatMul": ("MatMul(x, w)", (8, 4)),
    "Gemm": ("Gemm(x, w)", (8, 4)),
    "Conv": ("Conv(x, w)", (4, 8, 3, 3)),
    "ConvTranspose": ("ConvTranspose(x, w)", (8, 4, 3, 3)),
}


# quantized only as a part of what is before them: their models are in tests/cases/test_graphs_hard_gate.py
IN_A_CHAIN = {"Div"}
# read codes, and write none: theirs are in tests/plan/test_operators.py
READS_CODES = {"ArgMax"}


def test_every_operator_with_a_handler_has_a_model():
    assert handlers().keys() == MODELS.keys() | ALONE.keys() | IN_A_CHAIN | READS_CODES


def test_handlers_say_what_they_are():
    for op_type, handler in handlers().items():
        assert op_type in handler.op_types
        assert handler.phase in Phase
        assert (type(handler).__doc__ or "").strip()


def between(op: str) -> onnx.ModelProto:
    """Conv, the operator, and Conv (or MatMul, where the operator flattens)."""
    body, arrays, channels = MODELS[op]
    source, dims, first, kernel = {
        "Squeeze": ("a5", "6,6,1", "Conv(x, u)", (1, 1, 1)),
        "Unsqueeze": ("a3", "6", "Conv(x, u)", (1,)),
    }.get(op, ("a", "6,6", "Conv<pads=[1,1,1,1]>(x, u)", (3, 3)))
    outputs = "p, q" if op == "Split" else "p"
    before = "m = Mul(a, a)" if op == "Div" else ""
    last, rank, weight = "Conv(p, v)", "N,b,c,d", normal(4, channels, 1, 1, seed=1)
    if op == "Flatten":
        last, rank, weight = "MatMul(p, v)", "N,b", normal(channels, 4, seed=1)
    return build(
        f"""m (float[N,4,{dims}] x) => (float[{rank}] y) {{
            [first] {source} = {first}
            {before}
            [op] {outputs} = {body}
            [last] y = {last}
        }}""",
        {"u": normal(4, 4, *kernel, scale=0.2), "v": weight, **arrays},
    )


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("activations", ["uint8", "int8", "symmetric"])
@pytest.mark.parametrize("op", MODELS)
def test_an_operator_between_two_quantized_ones(op, activations, form):
    """Quantized, or prepared away; float in between would show as a DequantizeLinear more."""
    model = between(op)
    shape = [d.dim_value or 4 for d in model.graph.input[0].type.tensor_type.shape.dim]
    options = (
        {"activations": "int8", "symmetric_activations": True}
        if activations == "symmetric"
        else {"activations": activations}
    )
    checked = quantize_and_check(model, {"x": normal(*shape, seed=2)}, format=form, agreement_db=28, **options)
    names = {d.node for d in checked.result.plan.decisions} | {
        n for d in checked.result.plan.decisions for n in d.absorbed
    }
    assert {"first", "last"} <= names
    check_fusion(checked.result, checked.model)
    if op != "Identity":  # which prepare removes
        assert "op" in names
    assert checked.sqnr() >= 24
    if form == "qlinear" and checked.result.plan.decisions[1].form is Form.MOVER:
        assert checked.ops["QuantizeLinear"] == 1
        assert checked.ops["DequantizeLinear"] == 1


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("op", ALONE)
def test_an_operator_with_a_weight(op, form):
    body, shape = ALONE[op]
    spatial = ",6,6" if len(shape) == 4 else ""
    dims = "N,b,c,d" if spatial else "N,b"
    model = build(f"m (float[N,8{spatial}] x) => (float[{dims}] y) {{ [op] y = {body} }}", {"w": normal(*shape)})
    x = normal(4, 8, *([6, 6] if spatial else []), seed=1)
    checked = quantize_and_check(model, {"x": x}, format=form)
    assert checked.quantized() == ["op"]
    assert checked.sqnr() >= 35
    assert qtool.inspect(model).by_op == {op: (1, 1)}
