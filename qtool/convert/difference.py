"""In what the quantization of two files differs: parameters, codes of weights, and which nodes are quantized."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from qtool.convert.parameters import Parameters, QuantizedTensor

ONLY_A, ONLY_B = "only in A", "only in B"
# layout movers that one form keeps and the other may not have
_UNDECIDED = frozenset(("Identity",))


@dataclass(frozen=True)
class TensorDifference:
    """A tensor that is quantized differently.

    Attributes:
        name: Its name in A, or in B if only B has it.
        kind: ``weight``, ``bias`` or ``activation``.
        what: The first thing that differs: ``only in A``, ``only in B``, ``type``, ``granularity``, ``scale``,
            ``zero point``, ``codes``.
        a: Its value in A, in words.
        b: Its value in B, in words.
        codes: How many codes of a weight differ; None where they cannot be compared.
    """

    name: str
    kind: str
    what: str
    a: str
    b: str
    codes: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "tensor": self.name, "kind": self.kind, "what": self.what, "a": self.a, "b": self.b, "codes": self.codes,
        }  # fmt: skip


@dataclass(frozen=True)
class Difference:
    """All differences of two files.

    Attributes:
        tensors: Those of tensors, a row for each thing that differs, in the order of A.
        nodes: (node, operator, ``only in A`` or ``only in B``) of nodes that one of them quantizes.
        compared: Tensors that both have.
        counts: Tensors and nodes that each file quantizes: (tensors of A, of B, nodes of A, of B).
    """

    tensors: tuple[TensorDifference, ...]
    nodes: tuple[tuple[str, str, str], ...]
    compared: int
    counts: tuple[int, int, int, int]

    @property
    def is_empty(self) -> bool:
        """Whether there is none."""
        return not self.tensors and not self.nodes

    @property
    def codes(self) -> int:
        """Codes of weights that differ."""
        return sum(t.codes or 0 for t in self.tensors if t.what == "codes")

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        a, b, nodes_a, nodes_b = self.counts
        return {
            "schema_version": 1,
            "different": not self.is_empty,
            "tensors_a": a,
            "tensors_b": b,
            "nodes_a": nodes_a,
            "nodes_b": nodes_b,
            "tensors_compared": self.compared,
            "codes_differing": self.codes,
            "tensors": [t.to_dict() for t in self.tensors],
            "nodes": [{"node": n, "op_type": op, "what": what} for n, op, what in self.nodes],
        }


def difference(a: Parameters, b: Parameters) -> Difference:
    """Compare two files. Tensors are matched by any name that they share, nodes by name."""
    rows: list[TensorDifference] = []
    matched: set[int] = set()
    index: dict[tuple[str, str], list[int]] = {}
    for position, tensor in enumerate(b.tensors):
        for name in tensor.names:
            index.setdefault((tensor.kind, name), []).append(position)
    for tensor in a.tensors:
        other = _partner(tensor, b.tensors, index, matched)
        if other is None:
            rows.append(TensorDifference(tensor.name, tensor.kind, ONLY_A, describe(tensor), ""))
            continue
        matched.add(other)
        rows += _differences(tensor, b.tensors[other])
    for position, tensor in enumerate(b.tensors):
        if position not in matched:
            rows.append(TensorDifference(tensor.name, tensor.kind, ONLY_B, "", describe(tensor)))
    nodes = [(name, op, ONLY_A) for name, op in a.nodes.items() if name not in b.nodes and op not in _UNDECIDED]
    nodes += [(name, op, ONLY_B) for name, op in b.nodes.items() if name not in a.nodes and op not in _UNDECIDED]
    counts = (len(a.tensors), len(b.tensors), len(a.nodes), len(b.nodes))
    return Difference(tuple(rows), tuple(nodes), len(matched), counts)


def _partner(
    tensor: QuantizedTensor,
    others: Sequence[QuantizedTensor],
    index: dict[tuple[str, str], list[int]],
    matched: set[int],
) -> int | None:
    """The tensor of the other file that shares a name: one with equal parameters before any other."""
    found = [tensor.name, *sorted(tensor.names - {tensor.name})]
    candidates = dict.fromkeys(p for name in found for p in index.get((tensor.kind, name), ()) if p not in matched)
    best = next((p for p in candidates if next(_differences(tensor, others[p]), None) is None), None)
    return best if best is not None else next(iter(candidates), None)


def _differences(a: QuantizedTensor, b: QuantizedTensor) -> Iterator[TensorDifference]:
    """A row for each thing that differs."""
    same_shape = a.codes is not None and b.codes is not None and tuple(a.codes.shape) == tuple(b.codes.shape)

    def row(what: str, mine: str, theirs: str, codes: int | None = None) -> TensorDifference:
        return TensorDifference(a.name, a.kind, what, mine, theirs, codes)

    if a.dtype != b.dtype:
        yield row("type", a.dtype, b.dtype)
    if a.granularity != b.granularity:
        yield row("granularity", a.granularity, b.granularity)
    else:
        for what, mine, theirs in (("scale", a.scale, b.scale), ("zero point", a.zero_point, b.zero_point)):
            if mine is None or theirs is None:
                if (mine is None) != (theirs is None):
                    yield row(what, _words(mine), _words(theirs))
                continue
            x, y = mine.reshape(-1).astype(np.float64), theirs.reshape(-1).astype(np.float64)
            if x.shape != y.shape:
                yield row(what, f"{x.size} values", f"{y.size} values")
            elif not np.array_equal(x, y) and not (what == "zero point" and a.dtype != b.dtype):
                first = int(np.flatnonzero(x != y)[0])
                many = f" ({int((x != y).sum())} of {x.size})" if x.size > 1 else ""
                yield row(what, f"{x[first]:.9g}{many}", f"{y[first]:.9g}")
    if a.codes is not None and b.codes is not None:
        if not same_shape:
            yield row("shape", str(list(a.codes.shape)), str(list(b.codes.shape)))
        elif a.dtype == b.dtype:
            x, y = a.codes.numpy(), b.codes.numpy()
            apart = (
                int((x.astype(np.float32) != y.astype(np.float32)).sum())
                if x.dtype.kind not in "iu"
                else int((x != y).sum())
            )
            if apart:
                yield row("codes", f"{apart} of {x.size}", "", apart)


def describe(tensor: QuantizedTensor) -> str:
    """A tensor's parameters in one clause."""
    return f"{tensor.dtype} {tensor.granularity}, scale {_words(tensor.scale)}"


def _words(array: np.ndarray | None) -> str:
    if array is None:
        return "computed"
    if array.size == 1:
        return f"{float(array.reshape(-1)[0]):.9g}"
    return f"{float(array.min()):.4g} to {float(array.max()):.4g}"
