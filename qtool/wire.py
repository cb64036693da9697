"""The fields of a protobuf message in a file, without parsing what is in them.

An ONNX file is one such message, and the bytes of a weight stand in it as they are: who knows where need not hold them.
Format: the encoding of Protocol Buffers, https://protobuf.dev/programming-guides/encoding/. Field numbers are those of
onnx.proto.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from typing import NamedTuple

GRAPH = 7  # of ModelProto
INITIALIZER = 5  # of GraphProto
RAW_DATA, EXTERNAL_DATA, DATA_LOCATION = 9, 13, 14  # of TensorProto
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5  # wire types


class Field(NamedTuple):
    """One field of a message; places are offsets in the file.

    Attributes:
        number: Which field.
        wire: How it is written.
        tag: Where it begins.
        content: Where what it holds begins.
        end: Where it ends.
    """

    number: int
    wire: int
    tag: int
    content: int
    end: int


def fields(data: mmap.mmap, position: int, end: int) -> Iterator[Field]:
    """Walk over a message.

    Args:
        data: The file.
        position: Where the message begins.
        end: Where it ends.

    Raises:
        ValueError: If it is not well formed, or does not end where its last field does.
    """
    while position < end:
        tag = position
        key, position = _varint(data, position, end)
        number, wire = key >> 3, key & 7
        content = position
        if wire == VARINT:
            _, position = _varint(data, position, end)
        elif wire == FIXED64:
            position += 8
        elif wire == FIXED32:
            position += 4
        elif wire == BYTES:
            length, content = _varint(data, position, end)
            position = content + length
        else:
            raise ValueError(f"Wire type {wire} at byte {tag}.")
        if position > end or number == 0:
            raise ValueError(f"A field at byte {tag} ends behind its message, or has no number.")
        yield Field(number, wire, tag, content, position)


def message(number: int, content: bytes) -> bytes:
    """A field that holds a message, or other bytes."""
    return _number(number << 3 | BYTES) + _number(len(content)) + content


def _varint(data: mmap.mmap, position: int, end: int) -> tuple[int, int]:
    value = shift = 0
    while position < end and shift < 70:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
    raise ValueError(f"No number at byte {position}.")


def _number(value: int) -> bytes:
    digits = bytearray()
    while value > 0x7F:
        digits.append(value & 0x7F | 0x80)
        value >>= 7
    digits.append(value)
    return bytes(digits)
