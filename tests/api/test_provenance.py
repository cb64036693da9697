"""What a statistics file is of is the same, whether it is found out beside the preparation or after it."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from qtool.api._provenance import Provenance
from qtool.api.models import inputs_of
from qtool.calibrate.kept import survey
from qtool.calibrate.samples import Samples, open_samples
from qtool.errors import DataError
from qtool.prepare.fingerprint import fingerprint
from qtool.prepare.load import load_model

TEXT = """<ir_version: 8, opset_import: ["": 17]>
g (float[N,4] x) => (float[N,4] y) { a = MatMul(x, W) y = Relu(a) }"""


@pytest.fixture
def loaded() -> ir.Model:
    proto = onnx.parser.parse_model(TEXT)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.ones((4, 4), np.float32), "W"))
    return load_model(proto)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    np.savez(tmp_path / "c.npz", x=np.arange(40, dtype=np.float32).reshape(10, 4))
    return tmp_path / "c.npz"


def of(loaded: ir.Model, data: object) -> Samples:
    return open_samples(data, inputs_of(loaded))  # type: ignore[arg-type]


class Rows:
    """Samples that note which thread walks over them."""

    def __init__(self) -> None:
        self.walkers: list[threading.Thread] = []

    def __iter__(self) -> Iterator[Mapping[str, np.ndarray]]:
        self.walkers.append(threading.current_thread())
        yield from ({"x": np.full((1, 4), value, np.float32)} for value in range(3))


@pytest.mark.parametrize("early", [True, False])
@pytest.mark.parametrize("beside", [True, False])
def test_it_is_what_the_two_functions_say(loaded, path, beside, early):
    samples = of(loaded, path)
    coverage, kept = survey(samples)
    with Provenance(loaded, loaded, samples, beside=beside, early=early) as found:
        assert found.model == fingerprint(loaded, loaded.graph.opset_imports)
        assert found.samples[0] == coverage
        assert [(b.place, b.samples, b.feeds["x"].tobytes()) for b in found.samples[1].batches] == [
            (b.place, b.samples, b.feeds["x"].tobytes()) for b in kept.batches
        ]


@pytest.mark.parametrize("beside", [True, False])
def test_a_model_may_lend_its_constants(loaded, path, beside):
    before = fingerprint(loaded, loaded.graph.opset_imports)
    with Provenance(loaded, loaded, of(loaded, path), beside=beside) as found:
        loaded.graph.initializers["W"].const_value = ir.tensor(np.zeros((4, 4), np.float32))
        assert found.model == before


def test_a_caller_s_iterable_is_walked_by_the_caller_alone(loaded):
    rows = Rows()
    with Provenance(loaded, loaded, of(loaded, rows), beside=True) as found:
        rows.walkers.clear()
        assert found.samples[1].samples == 3
    assert set(rows.walkers) == {threading.current_thread()}


@pytest.mark.parametrize("beside", [True, False])
def test_samples_that_are_gone_are_said_when_they_are_asked_for(loaded, path, beside):
    samples = of(loaded, path)
    path.unlink()
    with Provenance(loaded, loaded, samples, beside=beside) as found:
        assert len(found.model.parts) > 0
        with pytest.raises(DataError, match="cannot be read: No such file"):
            _ = found.samples


def test_no_thread_is_left(loaded, path):
    before = threading.active_count()
    with pytest.raises(KeyError), Provenance(loaded, loaded, of(loaded, path), beside=True):
        raise KeyError
    assert threading.active_count() == before
