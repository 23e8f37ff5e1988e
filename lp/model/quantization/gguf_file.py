"""The weights of a GGUF file under the names of a transformers model, as they are in the file or unpacked.

transformers knows the names of tensors and how their rows are ordered for most architectures; where it computes other
tensors of those of the file (transposed matrices), it reads the file itself (lp/model/gguf.py).
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf.constants import GGMLQuantizationType
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel, modeling_gguf_pytorch_utils

from lp.model.errors import CheckpointError
from lp.model.gguf_header import TensorInfo, read_header
from lp.model.quantization import gguf_gpt_oss
from lp.model.quantization.experts import is_transposed
from lp.model.quantization.gguf_blocks import BLOCK_TYPES, GgufWeight
from lp.model.quantization.joined import InterleavedWeight, JoinedWeight, QuantizedExperts
from lp.model.quantization.model import empty_model, fill, takes_quantized
from lp.model.quantization.packed import pack_for
from lp.model.quantization.part import part_of
from lp.model.quantization.weight import AT_ONCE, QuantizedWeight
from lp.model.weight_files import FileKey, Matrices, Shard, names_of

log = logging.getLogger("lookahead")

# What transformers does to tensors of the file: nothing, another order of rows, another offset of norms, or one tensor
# of two of all experts.
_SIMPLE = (
    "TensorProcessor", "LlamaTensorProcessor", "Gemma2TensorProcessor", "NemotronTensorProcessor",
    "Qwen2MoeTensorProcessor", "MiniMaxM2TensorProcessor",
)  # fmt: skip
PLAIN: dict[int, torch.dtype] = {
    GGMLQuantizationType.F32: torch.float32,
    GGMLQuantizationType.F16: torch.float16,
    GGMLQuantizationType.BF16: torch.bfloat16,
}


def has_simple_tensors(architecture: str) -> bool:
    """Whether each tensor of a file is one of the model's or a part of one, but for the order of its rows."""
    return architecture in gguf.MODEL_ARCH_NAMES.values() and _processor(architecture).__name__ in _SIMPLE


class GgufFile:
    """The tensors of a file, by its own names; for a rank that reads parts of them, in the place of `WeightFiles`."""

    def __init__(self, file: Path, config: PreTrainedConfig):
        """Raises CheckpointError for a file that cannot be read."""
        try:
            header = read_header(file)
            # Copied when it is written to, which nobody does: torch takes no memory that is for reading alone.
            self._data = np.memmap(file, np.uint8, mode="c")
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{str(file)!r} cannot be read: {error}; copy or download it again") from error
        self.path = str(file)
        self._tensors = header.tensors
        self._architecture = next(key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == header.architecture)
        self._is_gpt_oss = header.architecture == gguf_gpt_oss.ARCHITECTURE
        self._transposed: set[FileKey] = set()  # experts whose parameter is [E, K, N]
        self._processor: Any = _processor(header.architecture)(config=config.to_dict())

    def __enter__(self) -> GgufFile:
        return self

    def __exit__(self, *error: object) -> None:
        pass  # the file stays mapped as long as weights lie in it

    def names(self, model: PreTrainedModel) -> dict[str, FileKey]:
        """The name in the file of each parameter of a model, by the model's own name; of those that the file has.

        Weights of experts are Matrices each of whose parts is one tensor, of all experts.
        """
        num_layers = model.config.get_text_config(decoder=True).num_hidden_layers
        known = gguf.get_tensor_name_map(self._architecture, num_layers)
        ties = model.all_tied_weights_keys  # a rank may hold one of two tied ones
        found: dict[str, FileKey] = {}
        for own in dict.fromkeys([*model.state_dict(), *ties, *ties.values()]):
            key = gguf_gpt_oss.expert_key(own) if self._is_gpt_oss else None
            if key is not None and all(one in self._tensors for one in names_of(key)):
                found[own] = key
                continue
            module, _, last = own.rpartition(".")
            if f"{(name := known.get_name(module))}.{last}" in self._tensors:
                found[own] = f"{name}.{last}"
                continue
            others: dict[str, str] = {}
            if (name := known.get_name(own)) is not None:
                others[name] = own
            else:
                self._processor.perform_fallback_tensor_mapping(others, "", "", own)
            parts = [f"{one}.weight" for one in others]
            if parts and all(one in self._tensors for one in parts):
                is_whole = len(self._tensors[parts[0]].shape) == 1  # a vector, whose name has no ending in the model
                found[own] = parts[0] if is_whole else Matrices(tuple((one,) for one in parts))
            elif len(others) == 1 and (name := next(iter(others))) in self._tensors:
                found[own] = name
        experts = [own for own, key in found.items() if isinstance(key, Matrices)]
        self._transposed = {found[own] for own in experts if is_transposed(model, own)}
        return found

    def kinds(self, name: FileKey) -> list[GGMLQuantizationType]:
        """The types of a tensor's blocks, or of those of its parts."""
        return [GGMLQuantizationType(self._tensors[one].kind) for one in names_of(name)]

    def quantized(
        self, name: FileKey, expected: Sequence[int], shard: Shard | None, dtype: torch.dtype
    ) -> QuantizedWeight | None:
        """A tensor, or a shard of it, as it is in the file; None for one that kernels cannot read as it is.

        expected: shape of the whole tensor. dtype: of the model. Raises CheckpointError, and UnevenCut.
        """
        if isinstance(name, Matrices):
            return self._quantized_experts(name, expected, shard, dtype)
        assert isinstance(name, str), "no tensor is joined of others"
        one = self._tensors[name]
        if one.kind not in BLOCK_TYPES or len(one.shape) != 2:
            return None
        self._check_shape(name, one.shape, expected)
        blocks = torch.from_numpy(self._rows(one))
        places = np.arange(len(blocks))
        order = self._ordered(name, places[:, None])[:, 0]
        order = None if np.array_equal(order, places) else torch.from_numpy(order)
        return part_of(GgufWeight(blocks, one.kind, dtype, order), shard)

    def _quantized_experts(
        self, name: Matrices, expected: Sequence[int], shard: Shard | None, dtype: torch.dtype
    ) -> QuantizedWeight | None:
        parts = [self._tensors[one] for one in names_of(name)]
        if parts[0].kind not in BLOCK_TYPES or any(one.kind != parts[0].kind for one in parts):
            return None
        num_experts, num_outputs, num_inputs = expected
        if name in self._transposed:
            num_outputs, num_inputs = num_inputs, num_outputs
            shard = shard and Shard(3 - shard.dim, shard.ranges)
        of_parts = []
        for key, one in zip(names_of(name), parts, strict=True):
            self._check_shape(key, one.shape, (num_experts, num_outputs // len(parts), num_inputs))
            rows = torch.from_numpy(self._rows(one)).view(num_experts, num_outputs // len(parts), -1)
            of_parts.append([GgufWeight(blocks, one.kind, dtype) for blocks in rows])
        own = shard and Shard(shard.dim - 1, shard.ranges)
        join = InterleavedWeight if name.takes_turns else JoinedWeight
        return QuantizedExperts([part_of(join(one), own) for one in zip(*of_parts, strict=True)])

    def read(
        self, name: FileKey, expected: Sequence[int], shard: Shard | None, dtype: torch.dtype,
        device: torch.device,
    ) -> Tensor:  # fmt: skip
        """A tensor, or a shard of it, unpacked; see WeightFiles.read."""
        whole = self.plain(name, dtype)
        self._check_shape(names_of(name)[0], whole.shape, expected)
        if shard is not None:
            whole = torch.cat([whole[bounds] for bounds in shard.bounds(expected)], dim=shard.dim)
        return whole.to(device)

    def plain(self, name: FileKey, dtype: torch.dtype) -> Tensor:
        """A tensor, unpacked."""
        if isinstance(name, Matrices):
            parts = [self.plain(one, dtype) for one in names_of(name)]
            whole = torch.stack(parts, dim=2).flatten(1, 2) if name.takes_turns else torch.cat(parts, dim=1)
            return whole.mT.contiguous() if name in self._transposed else whole
        assert isinstance(name, str), "no tensor is joined of others"
        one = self._tensors[name]
        if len(one.shape) == 1:  # its numbers may be changed, not only their order
            (numbers,) = self._unpacked(one)
            return torch.from_numpy(self._ordered(name, numbers.float().view(one.shape).numpy())).to(dtype)
        whole = torch.empty(one.num_elements // one.shape[-1], one.shape[-1], dtype=dtype)
        begin = 0
        for part in self._unpacked(one):
            whole[begin : begin + len(part)] = part
            begin += len(part)
        ordered = self._ordered(name, whole.view(torch.uint8).numpy())
        return torch.from_numpy(ordered).view(dtype).view(one.shape)

    def _check_shape(self, name: str, found: Sequence[int], expected: Sequence[int]) -> None:
        if tuple(found) != tuple(expected):
            raise CheckpointError(f"{name} of {self.path!r} has shape {list(found)}, not {list(expected)}")

    def _unpacked(self, one: TensorInfo) -> Iterator[Tensor]:
        """[rows, inputs] in float32 or in the file's own format, some rows at a time."""
        rows = self._rows(one)
        if one.kind in PLAIN:
            yield torch.from_numpy(rows).view(PLAIN[GGMLQuantizationType(one.kind)])
            return
        at_once = max(1, AT_ONCE // one.shape[-1])
        for first in range(0, len(rows), at_once):
            yield torch.from_numpy(gguf.dequantize(rows[first : first + at_once], GGMLQuantizationType(one.kind)))

    def _rows(self, one: TensorInfo) -> np.ndarray:
        """uint8 [rows, bytes of a row]."""
        data = self._data[one.begin : one.begin + one.num_bytes]
        return data.reshape(one.num_elements // one.shape[-1], -1)

    def _ordered(self, name: str, numbers: np.ndarray) -> np.ndarray:
        """A tensor's rows, of numbers or bytes, in the order of the model."""
        return np.ascontiguousarray(self._processor.process(weights=numbers, name=name, tensor_key_mapping={}).weights)


def read_gguf(
    file: Path, config: PreTrainedConfig, dtype: torch.dtype, device: torch.device
) -> tuple[PreTrainedModel, list[int]]:
    """Reads all weights of a file; see Reader in lp/model/checkpoint.py. Quantised ones stay so: on a CPU as they are,
    and packed on a GPU.

    Raises CheckpointError.
    """
    source, model = GgufFile(file, config), empty_model(config, dtype)
    tensors: dict[str, Tensor | QuantizedWeight] = {}
    unpacked: Counter[str] = Counter()
    names = source.names(model)
    for own, empty in model.state_dict().items():
        if (name := names.get(own)) is None:
            continue
        found = source.quantized(name, empty.shape, None, dtype) if takes_quantized(model, own) else None
        if found is None:
            unpacked.update(kind.name for kind in source.kinds(name) if kind not in PLAIN)
            found = source.plain(name, dtype)
        tensors[own] = pack_for(found, device) if isinstance(found, QuantizedWeight) else found
    if unpacked:
        kinds = ", ".join(f"{count} in {kind}" for kind, count in unpacked.items())
        log.info("unpacked to %s: %s tensors", str(dtype).removeprefix("torch."), kinds)
    fill(model, tensors, device)
    return model, list(range(config.get_text_config(decoder=True).num_hidden_layers))


def _processor(architecture: str) -> Any:
    known = modeling_gguf_pytorch_utils.TENSOR_PROCESSORS
    return known.get(architecture, modeling_gguf_pytorch_utils.TensorProcessor)
