"""Reads quantised checkpoints in safetensors files, whose weights stay as they are, mapped into memory.

Each method stores the weight of a module in tensors of its own beside the module's other parameters. What the numbers
are is defined by the libraries that write them: AutoGPTQ and GPTQModel (qlinear), AutoAWQ (awq/utils/packing_utils.py),
compressed-tensors (compressors), and transformers for FP8 and MXFP4 (integrations/finegrained_fp8.py, mxfp4.py).

N outputs, K inputs, S inputs that share a scale
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel

from lp.model.errors import CheckpointError
from lp.model.quantization.files import FilesOfQuantized
from lp.model.quantization.joined import JoinedWeight
from lp.model.quantization.methods import AWQ, COMPRESSED, FP8, GPTQ, MXFP4, Method
from lp.model.quantization.model import empty_model, fill, takes_quantized, without_twins
from lp.model.quantization.packed import pack_for
from lp.model.quantization.part import part_of
from lp.model.quantization.weight import GROUP, IndexedWeight, Numbers, QuantizedWeight, WeightFormat, summary
from lp.model.weight_files import FileKey, Matrices, Shard, WeightFiles, names_of
from lp.platform.hardware import dtype_name

log = logging.getLogger("lookahead")

E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
E4M3 = tuple(torch.arange(256).to(torch.uint8).view(torch.float8_e4m3fn).float().tolist())
# Where in four bytes AWQ has each of eight outputs.
AWQ_PLACES = [0, 4, 1, 5, 2, 6, 3, 7]
# The last part of names of tensors that make a module's weight a quantised one, and of the others that belong to it.
PACKED = {"qweight", "weight_packed", "weight_blocks"}
SCALES = {"scales", "weight_scale", "weight_scales", "weight_scale_inv"}
PARTS = PACKED | SCALES | {"weight", "qzeros", "g_idx", "weight_zero_point", "weight_shape", "weight_g_idx"}
# Scales of activations and of keys and values, which are not quantised here.
IGNORED = {
    "bias", "input_scale", "input_zero_point", "output_scale", "output_zero_point", "activation_scale", "k_scale",
    "v_scale", "q_scale",
}  # fmt: skip

# The tensors of a module: the names in the files, by the last parts of their names.
Parts = dict[str, str]
# Which outputs are wanted.
Outputs = slice | Tensor
# Unpacks codes: uint8 [n, K] of a packed tensor.
Unpack = Callable[[Tensor, Outputs], Tensor]


class StoredWeight(IndexedWeight):
    """A quantised weight of a checkpoint, in the tensors of its file."""

    def __init__(
        self,
        format: WeightFormat,
        packed: Tensor,
        unpack: Unpack,
        scales: Tensor,
        zeros: Tensor | None,
        shape: tuple[int, int],
        dtype: torch.dtype,
        block_rows: int = 1,
    ):
        """scales: [N / block_rows, K / S]. zeros: uint8 of the same shape, the codes of 0. shape: N, K.

        See QuantizedWeight for the others.
        """
        super().__init__(format, *shape, dtype)
        self._packed, self._unpack = packed, unpack
        self._scales, self._zeros, self._block_rows = scales, zeros, block_rows

    @property
    def num_bytes(self) -> int:
        return sum(part.nbytes for part in (self._packed, self._scales, self._zeros) if part is not None)

    def free(self) -> None:
        self._packed = self._scales = torch.empty(0)
        self._zeros = None

    def _numbers(self, outputs: Outputs) -> Numbers:
        codes, at = self._unpack(self._packed, outputs), outputs
        if self._block_rows > 1:
            at = _indices(outputs, self.num_outputs) // self._block_rows
        scales = self._scales[at].to(self.format.scale)
        if self._zeros is None:
            return Numbers(codes, scales)
        minimum_steps = self._zeros[at].repeat_interleave(self.span // GROUP, dim=1)
        return Numbers(codes, scales, minima=scales, minimum_steps=minimum_steps)


class QuantizedFiles(FilesOfQuantized):
    """The tensors of a quantised checkpoint, in which weights stay as they are stored.

    A quantised weight has the name of its module and "weight", whatever its tensors are called.
    """

    def __init__(self, path: str, method: Method):
        """path: folder or hub id. Raises CheckpointError."""
        super().__init__(path)
        self._method, self._modules = method, _quantized_modules(self._files)

    def _find_names(self, model: PreTrainedModel) -> dict[str, FileKey]:
        files, modules = self._files, self._modules
        plain = [key for key in files.keys if _split(key)[0] not in modules or key.endswith(".bias")]
        found = files.names(model, [*plain, *(_weight_of(module, parts) for module, parts in modules.items())])
        names, own = without_twins(files, model, found), model.state_dict()
        for name, key in names.items():
            if name not in own:
                continue
            if _module(key, modules) is None:
                if own[name].is_floating_point():
                    files.check_floating(key)
            elif not takes_quantized(model, name):
                raise CheckpointError(
                    f"{name} is quantised, and such a parameter cannot be read so yet: only weights of linear layers, "
                    "of experts and of embeddings can; give a checkpoint that is not quantised"
                )
        return names

    def _weights(
        self, key: FileKey, num_experts: int | None, shape: tuple[int, int], shard: Shard | None,
        dtype: torch.dtype,
    ) -> list[QuantizedWeight] | None:  # fmt: skip
        if (module := _module(key, self._modules)) is None:
            return None
        stored = _Module(self._files, module, self._modules[module], self._method)
        if num_experts is None:
            found = [stored.weight(shape, dtype)]
        elif isinstance(key, Matrices):
            found = self._matrices(key, num_experts, shape, dtype)
        else:
            found = stored.experts(num_experts, shape, dtype)
        return [part_of(one, shard) for one in found]

    def _matrices(
        self, matrices: Matrices, num_experts: int, shape: tuple[int, int], dtype: torch.dtype
    ) -> list[QuantizedWeight]:
        """The weight [N, K] of each expert, whose parts lie one below the other."""
        of_part = shape[0] // len(matrices.parts), shape[1]
        stored = []
        for keys in matrices.parts:
            if len(keys) != num_experts:
                raise CheckpointError(f"there are {len(keys)} experts as {keys[0]}, and there must be {num_experts}")
            for module in (key.removesuffix(".weight") for key in keys):
                if module not in self._modules:
                    raise CheckpointError(
                        f"{module} is not quantised, as other experts of its layer are, which cannot be read; give a "
                        "checkpoint in which all or none are"
                    )
                stored.append(_Module(self._files, module, self._modules[module], self._method))
        found = [one.weight(of_part, dtype) for one in stored]
        if len({one.format for one in found}) > 1:  # zero points that are all in the middle have been left out
            found = [one.weight(of_part, dtype, keeps_zeros=True) for one in stored]
        if len(formats := {one.format.name for one in found}) > 1:
            raise CheckpointError(
                f"{matrices.parts[0][0]} and the other experts of its layer are quantised in several formats "
                f"({', '.join(sorted(formats))}), which cannot be read"
            )
        return [JoinedWeight(found[number::num_experts]) for number in range(num_experts)]


def read_quantized(
    path: str, config: PreTrainedConfig, method: Method, dtype: torch.dtype, device: torch.device
) -> tuple[PreTrainedModel, list[int]]:
    """Reads all weights; see Reader in lp/model/checkpoint.py. Quantised ones stay so: on a CPU as they are, and packed
    on a GPU.

    Raises CheckpointError.
    """
    model = empty_model(config, dtype)
    tensors: dict[str, Tensor | QuantizedWeight] = {}
    with QuantizedFiles(path, method) as files:
        names = files.names(model)
        for name, empty in model.state_dict().items():
            if (key := names.get(name)) is not None:
                tensors[name] = files.quantized(key, empty.shape, None, dtype) or files.read(
                    key, empty.shape, None, dtype, torch.device("cpu")
                )
    quantized = [one for one in tensors.values() if isinstance(one, QuantizedWeight)]
    log.info("%s weights: %s; the text is that of the quantised model", method.name, summary(quantized))
    if method.has_activations:
        log.info("the checkpoint is made for quantised activations as well; here they stay in %s", dtype_name(dtype))
    tensors = {
        name: pack_for(one, device) if isinstance(one, QuantizedWeight) else one for name, one in tensors.items()
    }
    fill(model, tensors, device)
    return model, list(range(config.get_text_config(decoder=True).num_hidden_layers))


def _quantized_modules(files: WeightFiles) -> dict[str, Parts]:
    """The modules whose weight is quantised, and weights of all experts of a layer, each with its tensors."""
    parts: dict[str, Parts] = {}
    for key in files.keys:
        module, part = _split(key)
        parts.setdefault(module, {})[part] = key
    found = {
        module: own for module, own in parts.items() if own.keys() & PACKED or ("weight" in own and own.keys() & SCALES)
    }
    for module, own in found.items():
        if unknown := sorted(own.keys() - PARTS - IGNORED):
            raise CheckpointError(f"{module} is quantised with {', '.join(unknown)}, which is not known here")
    return found


def _split(key: str) -> tuple[str, str]:
    """The module of a tensor, and the tensor's name in it. A weight of all experts has no module of its own: it is one
    whose tensors begin with its name.
    """
    module, _, part = key.rpartition(".")
    for ending in ("_blocks", "_scales"):
        if part.endswith(ending) and part != f"weight{ending}":
            return key.removesuffix(ending), f"weight{ending}"
    return module, part


def _weight_of(module: str, parts: Parts) -> str:
    """The name of the weight of a quantised module."""
    return f"{module}.weight" if all(key.startswith(f"{module}.") for key in parts.values()) else module


def _module(key: FileKey, modules: Mapping[str, Parts]) -> str | None:
    """The quantised module that has a tensor, or one of those that have the matrices of a tensor."""
    owners = (one.removesuffix(".weight") for one in names_of(key))
    return next((owner for owner in owners if owner in modules), None)


class _Module:
    """The tensors of a module whose weight is quantised."""

    def __init__(self, files: WeightFiles, name: str, parts: Parts, method: Method):
        self._files, self._name, self._parts, self._method = files, name, parts, method
        self._keeps_zeros = False

    def weight(self, shape: tuple[int, int], dtype: torch.dtype, keeps_zeros: bool = False) -> QuantizedWeight:
        """shape: N, K, as the model has it. keeps_zeros: whether zero points that are all in the middle are kept.

        Raises CheckpointError.
        """
        self._keeps_zeros = keeps_zeros
        packed = self._parts.keys() & PACKED
        name = self._parts[packed.pop() if packed else "weight"]
        readers = {GPTQ: self._gptq, AWQ: self._awq, COMPRESSED: self._compressed, FP8: self._fp8, MXFP4: self._mxfp4}
        try:
            return readers[self._method.name](shape, dtype)
        except ValueError as error:
            if isinstance(error, CheckpointError):
                raise
            raise CheckpointError(f"{name} cannot be read as it is: {error}") from error

    def experts(self, num_experts: int, shape: tuple[int, int], dtype: torch.dtype) -> list[QuantizedWeight]:
        """The weights of all experts, which are in one tensor. shape: N, K of each. Raises CheckpointError."""
        if self._method.name != MXFP4:
            raise CheckpointError(f"{self._name} has all experts of a layer, quantised by {self._method.name}")
        num_groups = shape[1] // 32
        blocks = self._tensor("weight_blocks", num_experts, shape[0], num_groups, 16).flatten(2)
        scales = self._tensor("weight_scales", num_experts, shape[0], num_groups)
        return [_e2m1(*pair, shape, dtype) for pair in zip(blocks, scales.view(torch.uint8), strict=True)]

    def _tensor(self, part: str, *shape: int) -> Tensor:
        """One of the module's tensors. shape: what it must have; any if there is none."""
        if part not in self._parts:
            raise CheckpointError(f"the weights have no tensor {self._name}.{part}, which {self._method.name} needs")
        found = self._files.view(self._parts[part])
        if shape and tuple(found.shape) != shape:
            raise CheckpointError(f"{self._parts[part]} is {list(found.shape)} and must be {list(shape)}")
        return found

    def _gptq(self, shape: tuple[int, int], dtype: torch.dtype) -> QuantizedWeight:
        num_outputs, num_inputs = shape
        packed = self._tensor("qweight")
        bits = self._bits(packed.shape[0] * 32, num_inputs)
        self._tensor("qweight", num_inputs * bits // 32, num_outputs)
        scales = self._tensor("scales")
        num_groups = len(scales)
        self._tensor("scales", num_groups, num_outputs)
        span = self._span(num_inputs, num_groups)
        if "g_idx" in self._parts:
            self._check_order(self._tensor("g_idx", num_inputs), span)
        stored = self._tensor("qzeros", num_groups, num_outputs * bits // 32)
        zeros = _codes(stored, bits) + self._method.zero_offset & (1 << bits) - 1
        return self._integers(
            bits, packed, lambda all, at: _codes(all[:, at].t(), bits), scales.t(), zeros.t(), shape, dtype
        )

    def _awq(self, shape: tuple[int, int], dtype: torch.dtype) -> QuantizedWeight:
        num_outputs, num_inputs = shape
        packed = self._tensor("qweight", num_inputs, num_outputs // 8)
        scales = self._tensor("scales")
        num_groups = len(scales)
        self._tensor("scales", num_groups, num_outputs)
        self._span(num_inputs, num_groups)
        zeros = _awq_codes(self._tensor("qzeros", num_groups, num_outputs // 8), slice(0, num_outputs))
        return self._integers(4, packed, _awq_codes, scales.t(), zeros, shape, dtype)

    def _compressed(self, shape: tuple[int, int], dtype: torch.dtype) -> QuantizedWeight:
        if "weight_packed" not in self._parts:
            return self._bytes("weight_scale", shape, dtype)
        num_outputs, num_inputs = shape
        packed = self._tensor("weight_packed")
        if packed.dtype == torch.uint8:
            return self._minifloats(packed, "weight_scale", shape, dtype)
        if "weight_shape" in self._parts and self._tensor("weight_shape").tolist() != list(shape):
            raise CheckpointError(f"{self._name}.weight_shape is not {list(shape)}, which the model needs")
        if "weight_g_idx" in self._parts:
            self._check_order(
                self._tensor("weight_g_idx", num_inputs), self._span(num_inputs, self._tensor("weight_scale").shape[-1])
            )
        bits = self._bits(packed.shape[1] * 32, num_inputs)
        self._tensor("weight_packed", num_outputs, num_inputs * bits // 32)
        scales, _ = self._scales("weight_scale", shape, with_blocks=False)
        zeros = None
        if "weight_zero_point" in self._parts:
            stored = self._tensor("weight_zero_point", -(-num_outputs * bits // 32), scales.shape[1])
            zeros = _codes(stored.t(), bits)[:, :num_outputs].t()
        return self._integers(bits, packed, lambda all, at: _codes(all[at], bits), scales, zeros, shape, dtype)

    def _fp8(self, shape: tuple[int, int], dtype: torch.dtype) -> QuantizedWeight:
        return self._bytes("weight_scale_inv" if "weight_scale_inv" in self._parts else "weight_scale", shape, dtype)

    def _mxfp4(self, shape: tuple[int, int], dtype: torch.dtype) -> QuantizedWeight:
        blocks = self._tensor("weight_blocks", shape[0], shape[1] // 32, 16)
        return self._minifloats(blocks.view(shape[0], -1), "weight_scales", shape, dtype)

    def _bytes(self, scale: str, shape: tuple[int, int], dtype: torch.dtype) -> QuantizedWeight:
        """Codes of a byte each: integers, or floating-point numbers of 8 bits."""
        packed = self._tensor("weight", *shape)
        scales, block_rows = self._scales(scale, shape, with_blocks=True)
        if packed.dtype == torch.int8 and self._method.name == COMPRESSED:
            zeros = None
            if "weight_zero_point" in self._parts:
                stored = self._tensor("weight_zero_point").view(-1, scales.shape[1]).expand(len(scales), -1)
                zeros = (stored.short() + 128).to(torch.uint8)
            return self._integers(8, packed, _signed_codes, scales, zeros, shape, dtype, block_rows)
        if packed.dtype != torch.float8_e4m3fn:
            raise ValueError(f"{dtype_name(packed.dtype)} is neither FP8 (E4M3) nor int8")
        if "weight_zero_point" in self._parts and self._tensor("weight_zero_point").float().any():
            raise ValueError("floating-point numbers with zero points")
        span = shape[1] // scales.shape[1]
        format = WeightFormat("FP8", 8, codebook=E4M3, span=span, scale=torch.float32)
        return StoredWeight(format, packed, _byte_codes, scales, None, shape, dtype, block_rows)

    def _minifloats(self, packed: Tensor, scale: str, shape: tuple[int, int], dtype: torch.dtype) -> QuantizedWeight:
        if tuple(packed.shape) != (shape[0], shape[1] // 2):
            raise ValueError(f"it does not hold {list(shape)} numbers of 4 bits")
        return _e2m1(packed, self._tensor(scale, shape[0], shape[1] // 32).view(torch.uint8), shape, dtype)

    def _integers(
        self,
        bits: int,
        packed: Tensor,
        unpack: Unpack,
        scales: Tensor,
        zeros: Tensor | None,
        shape: tuple[int, int],
        dtype: torch.dtype,
        block_rows: int = 1,
    ) -> QuantizedWeight:
        """Codes of integers. zeros: None stands for the code in the middle."""
        middle = 1 << (bits - 1)
        if zeros is not None and not self._keeps_zeros and bool((zeros == middle).all()):
            zeros = None
        is_shifted, zero = zeros is not None, middle if zeros is None else 0
        kind = torch.float16 if scales.dtype == torch.float16 else torch.float32
        name, span = f"int{bits}{' with zero points' if is_shifted else ''}", shape[1] // scales.shape[1]
        format = WeightFormat(
            name, bits, zero, span=span, scale=kind, has_minima=is_shifted, has_minimum_steps=is_shifted
        )
        return StoredWeight(format, packed, unpack, scales, zeros, shape, dtype, block_rows)

    def _scales(self, part: str, shape: tuple[int, int], with_blocks: bool) -> tuple[Tensor, int]:
        """Scales [N, K / S], or [N / outputs of a block, K / S], and the outputs of a block."""
        (num_outputs, num_inputs), stored = shape, self._tensor(part)
        if stored.numel() == 1:
            return stored.reshape(1, 1).expand(num_outputs, 1), 1
        if stored.dim() == 1 and len(stored) == num_outputs:
            stored = stored[:, None]
        if stored.dim() == 2 and len(stored) == num_outputs:
            self._span(num_inputs, stored.shape[1])
            return stored, 1
        if self._method.block is None or not with_blocks:
            raise ValueError(f"{part} is {list(stored.shape)}, which is neither for {num_outputs} outputs nor for all")
        rows, columns = self._method.block
        self._tensor(part, -(-num_outputs // rows), -(-num_inputs // columns))
        span = math.gcd(columns, num_inputs)  # the last block may be narrower
        if span % GROUP:
            raise ValueError(f"blocks of {columns} of {num_inputs} inputs; both must be a multiple of {GROUP}")
        return stored[:, torch.arange(0, num_inputs, span) // columns], rows

    def _span(self, num_inputs: int, num_groups: int) -> int:
        """S. Raises ValueError for groups of a size that cannot be read."""
        span, rest = divmod(num_inputs, num_groups)
        known = self._method.group_sizes
        is_known = not known or span in known or (num_groups == 1 and (-1 in known or max(known) > num_inputs))
        if rest or span % GROUP or not is_known:
            sizes = f" of {', '.join(map(str, sorted(known)))}" if known else ""
            raise ValueError(
                f"{num_inputs} inputs in {num_groups} groups{sizes}; the size of a group must divide them, and be a "
                f"multiple of {GROUP}"
            )
        return span

    def _bits(self, num_bits: int, num_inputs: int) -> int:
        """Bits of a code. num_bits: of an output's codes."""
        bits = num_bits // num_inputs
        if bits not in (4, 8):
            raise ValueError(f"codes of {num_bits / num_inputs:.3g} bits; 4 and 8 can be read")
        return bits

    def _check_order(self, groups: Tensor, span: int) -> None:
        """Raises CheckpointError unless each group consists of inputs that follow one another."""
        if not torch.equal(groups.long(), torch.arange(len(groups)) // span):
            raise CheckpointError(
                f"{self._name} is quantised with its inputs in another order (act-order, desc_act=true), which cannot "
                "be read; give a checkpoint that was made with desc_act=false"
            )


def _e2m1(packed: Tensor, scales: Tensor, shape: tuple[int, int], dtype: torch.dtype) -> QuantizedWeight:
    """packed: uint8 [N, K / 2]. scales: uint8 [N, K / 32], exponents."""
    format = WeightFormat("MXFP4", 4, codebook=E2M1, scale=torch.uint8)
    return StoredWeight(format, packed, lambda all, at: _codes(all[at], 4), scales, None, shape, dtype)


def _codes(packed: Tensor, bits: int) -> Tensor:
    """uint8 [n, codes]: the codes of packed rows [n, words], from the lowest bits on."""
    found = packed.contiguous().view(torch.uint8)
    return found if bits == 8 else torch.stack([found & 15, found >> 4], dim=2).view(len(found), -1)


def _byte_codes(packed: Tensor, outputs: Outputs) -> Tensor:
    """uint8 [n, K]: codes of a byte each."""
    return packed.view(torch.uint8)[outputs]


def _signed_codes(packed: Tensor, outputs: Outputs) -> Tensor:
    """uint8 [n, K]: int8 numbers as codes, of which 128 stands for 0."""
    return _byte_codes(packed, outputs) ^ 128


def _awq_codes(packed: Tensor, outputs: Outputs) -> Tensor:
    """uint8 [n, rows]: the codes of some outputs of int32 [rows, N / 8]."""
    wanted = _indices(outputs, packed.shape[1] * 8)
    first, last = int(wanted.min()) // 8, int(wanted.max()) // 8 + 1
    codes = _codes(packed[:, first:last], 4)
    places = torch.tensor(AWQ_PLACES)[wanted % 8] + (wanted // 8 - first) * 8
    return codes.t().contiguous()[places]


def _indices(outputs: Outputs, count: int) -> Tensor:
    return torch.arange(count)[outputs] if isinstance(outputs, slice) else outputs
