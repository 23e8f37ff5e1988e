"""Reads the header of a GGUF file: its architecture and its tensors, and whether the file is whole.

The reader of the package gguf needs seconds for the vocabulary of a model, and does not say that a file is cut off.
"""

from __future__ import annotations

import math
import mmap
import struct
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFReader, GGUFValueType, ReaderField
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

MAGIC = b"GGUF"
VERSIONS = (2, 3)
# By number of the type of a value: its format in the module struct. Types 8 and 9 are strings and arrays.
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
STRING, ARRAY = 8, 9
# Beginning of the names of a tokenizer's values, and the only array of these whose length a configuration needs.
TOKENIZER, TOKENS = "tokenizer.", "tokenizer.ggml.tokens"


@dataclass(frozen=True)
class TensorInfo:
    """Where a tensor lies in the file. shape: outermost dimension first. kind: a GGMLQuantizationType. begin: its first
    byte.
    """

    shape: tuple[int, ...]
    kind: int
    begin: int
    num_bytes: int

    @property
    def num_elements(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True)
class GgufHeader:
    """What a GGUF file holds. values: by their names; None for an array. num_strings: the number of strings in arrays,
    which are the vocabulary and its merges.
    """

    architecture: str
    values: dict[str, Any]
    tensors: dict[str, TensorInfo]
    num_strings: int

    @property
    def num_elements(self) -> int:
        """The number of weights in all tensors together."""
        return sum(one.num_elements for one in self.tensors.values())


def read_header(file: Path) -> GgufHeader:
    """Raises ValueError for a file that is not a whole GGUF file, OSError if it cannot be read."""
    with file.open("rb") as stream:
        if stream.read(len(MAGIC)) != MAGIC:
            raise ValueError("it does not begin with the letters GGUF")
        with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
            try:
                return _Parser(data).parse()
            except struct.error:
                raise ValueError(f"it is cut off: its {len(data)} bytes end within the header") from None


class BriefReader(GGUFReader):
    """The package's reader, which passes over strings in arrays and leaves out the arrays of a tokenizer. The tokens
    are as many zeros.
    """

    def _get_field_parts(self, orig_offs: int, raw_type: int) -> tuple[int, list[Any], list[int], list[GGUFValueType]]:
        if raw_type != ARRAY:
            return super()._get_field_parts(orig_offs, raw_type)
        at = orig_offs + struct.calcsize("<IQ")
        data = self.data.data  # numpy is slow at each small slice
        kind, length = struct.unpack_from("<IQ", data, orig_offs)
        if kind in SCALARS:
            values = np.frombuffer(data, f"<{SCALARS[kind]}", length, at)
            kinds = [GGUFValueType.ARRAY, GGUFValueType(kind)]
            return at + values.nbytes - orig_offs, list(values.reshape(-1, 1)), list(range(length)), kinds
        if kind != STRING:
            return super()._get_field_parts(orig_offs, raw_type)
        for _ in range(length):
            at += 8 + struct.unpack_from("<Q", data, at)[0]
        zeros = [np.zeros(1, np.uint32)]
        return at - orig_offs, zeros, [0] * length, [GGUFValueType.ARRAY, GGUFValueType.UINT32]

    def _push_field(self, field: ReaderField, skip_sum: bool = False) -> int:
        if field.name.startswith(TOKENIZER) and field.name != TOKENS and field.types[:1] == [GGUFValueType.ARRAY]:
            field.data.clear()
        return super()._push_field(field, skip_sum)


class _Parser:
    """Reads a GGUF file from its beginning. Raises struct.error where the file ends too early."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self._at = len(MAGIC)
        self._num_strings = 0

    def parse(self) -> GgufHeader:
        version = self._number("I")
        if version not in VERSIONS:
            raise ValueError(f"its GGUF version is {version}, and only versions 2 and 3, little-endian, can be read")
        num_tensors, num_values = self._number("Q"), self._number("Q")
        values = dict(self._key_and_value() for _ in range(num_values))
        architecture = values.get("general.architecture")
        if not isinstance(architecture, str):
            raise ValueError("it does not name its architecture (general.architecture)")
        tensors = [self._tensor() for _ in range(num_tensors)]
        alignment = values.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment < 1:
            raise ValueError(f"its alignment is {alignment!r}")
        begin = math.ceil(self._at / alignment) * alignment
        found = {name: replace(one, begin=begin + one.begin) for name, one in tensors}
        needed = max((one.begin + one.num_bytes for one in found.values()), default=begin)
        if needed > len(self._data):
            raise ValueError(f"it is cut off: it has {len(self._data)} of at least {needed} bytes")
        return GgufHeader(architecture, values, found, self._num_strings)

    def _key_and_value(self) -> tuple[str, Any]:
        key = self._string()
        return key, self._value(self._number("I"))

    def _value(self, kind: int) -> Any:
        """The value, or None for an array, which is passed over."""
        if kind in SCALARS:
            return self._number(SCALARS[kind])
        if kind == STRING:
            return self._string()
        if kind != ARRAY:
            raise ValueError(f"its header has a value of the unknown type {kind}")
        inner, length = self._number("I"), self._number("Q")
        if inner in SCALARS:
            self._pass(length * struct.calcsize(SCALARS[inner]))
            return None
        if inner == STRING:
            self._pass_strings(length)
            return None
        for _ in range(length):
            self._value(inner)
        return None

    def _pass_strings(self, count: int) -> None:
        self._num_strings += count
        data, at, end, read = self._data, self._at, len(self._data), struct.Struct("<Q").unpack_from
        for _ in range(count):  # hundreds of thousands
            at += 8 + read(data, at)[0]
            if at > end:
                raise struct.error("the file ends")
        self._at = at

    def _tensor(self) -> tuple[str, TensorInfo]:
        """A tensor's name, and where it lies, counted from the first tensor's beginning."""
        name = self._string()
        shape = tuple(self._number("Q") for _ in range(self._number("I")))[::-1]
        kind, offset = self._number("I"), self._number("Q")
        try:
            block, num_bytes = GGML_QUANT_SIZES[GGMLQuantizationType(kind)]
        except (ValueError, KeyError):
            raise ValueError(f"its tensor {name} has the unknown type {kind}; try a newer version of gguf") from None
        return name, TensorInfo(shape, kind, offset, math.prod(shape) // block * num_bytes)

    def _number(self, code: str) -> Any:
        (number,) = struct.unpack_from(f"<{code}", self._data, self._at)
        self._at += struct.calcsize(code)
        return number

    def _string(self) -> str:
        length = self._number("Q")
        begin = self._at
        self._pass(length)
        return self._data[begin : self._at].decode(errors="replace")

    def _pass(self, num_bytes: int) -> None:
        if num_bytes > len(self._data) - self._at:
            raise struct.error("the file ends")
        self._at += num_bytes
