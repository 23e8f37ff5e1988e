"""Quantises the weights of a checkpoint while it is read (`model.weights`), and measures what that changes.

A group of inputs shares a scale, chosen by least squares. Weights are read from the file some outputs at a time, so
that no more than the quantised ones is in memory. Knows nothing of how the model is run.

N outputs, K inputs, G groups of inputs
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from enum import StrEnum

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel

from lp.model.errors import CheckpointError
from lp.model.memory import num_weight_bytes
from lp.model.probes import Probes, spread_probes
from lp.model.quantization.experts import is_transposed
from lp.model.quantization.files import FilesOfQuantized
from lp.model.quantization.joined import JoinedWeight, QuantizedExperts
from lp.model.quantization.model import empty_model, fill, takes_quantized, twins_of, without_twins
from lp.model.quantization.packed import pack_for
from lp.model.quantization.part import check_inputs
from lp.model.quantization.weight import GROUP, IndexedWeight, Numbers, QuantizedWeight, WeightFormat
from lp.model.weight_files import FileKey, Joined, Matrices, Shard, WeightFiles
from lp.platform.hardware import dtype_name

log = logging.getLogger("lookahead")

# Scales that are tried, as multiples of the one with which the largest number has the largest code, and how often each
# is then replaced by the best one for the codes that it gives.
FACTORS = {8: (1.0,), 4: (1.15, 1.0, 0.85)}
NUM_REFINEMENTS = 2
# Numbers that are quantised at a time, so that they stay in a core's cache, and on a GPU, which then is busy.
AT_ONCE, AT_ONCE_ON_GPU = 1 << 18, 1 << 24
CPU = torch.device("cpu")


# The setting for the main model.
MODEL_WEIGHTS = "model.weights"
FORMATS = {bits: WeightFormat(f"int{bits}", bits, zero=1 << (bits - 1)) for bits in (4, 8)}


class Weights(StrEnum):
    """In which format weights are kept.

    auto: as the checkpoint has them. int8, int4: those of linear layers, of experts and of embeddings are quantised to
    so many bits when they are read, the embedding and the output head to 8 bits in both cases. If they are the main
    model's, the text is that of the quantised model.
    """

    auto = "auto"
    int8 = "int8"
    int4 = "int4"


class IntegerWeight(IndexedWeight):
    """A weight of integers, with a scale for each group of 32 inputs."""

    def __init__(self, packed: Tensor, scales: Tensor, bits: int, dtype: torch.dtype):
        """packed: uint8 [N, K * bits / 8], two codes of 4 bits in a byte. scales: float16 [N, G]."""
        super().__init__(FORMATS[bits], len(packed), packed.shape[1] * 8 // bits, dtype)
        self._packed, self._scales = packed, scales

    @property
    def device(self) -> torch.device:
        return self._packed.device

    @property
    def num_bytes(self) -> int:
        return self._packed.nbytes + self._scales.nbytes

    def free(self) -> None:
        self._packed = self._scales = torch.empty(0)

    def _numbers(self, outputs: slice | Tensor) -> Numbers:
        codes = self._packed[outputs]
        if self.format.bits == 4:
            codes = torch.stack([codes & 15, codes >> 4], dim=2).view(len(codes), -1)
        return Numbers(codes, self._scales[outputs])


class UnquantizedWeight(QuantizedWeight):
    """A weight [N, K] as the file has it, of which a forward sees some outputs at a time."""

    def __init__(self, stored: Tensor, dtype: torch.dtype):
        num_outputs, num_inputs = stored.shape
        super().__init__(WeightFormat(dtype_name(stored.dtype), 8 * stored.itemsize), num_outputs, num_inputs, dtype)
        self.stored = stored

    @property
    def num_bytes(self) -> int:
        return self.stored.nbytes

    def free(self) -> None:
        self.stored = self.stored.new_empty(0)

    def numbers(self, first: int, last: int) -> Numbers:
        raise NotImplementedError("it has no codes")

    def rows(self, outputs: Tensor) -> Tensor:
        return self.stored[outputs].float()

    def dequantized(self) -> Iterator[Tensor]:
        for part in self.stored.split(max(1, AT_ONCE // self.num_inputs)):
            yield part.float()


def read_and_quantize(
    path: str,
    config: PreTrainedConfig,
    dtype: torch.dtype,
    device: torch.device,
    weights: Weights,
    probes: Probes,
    setting: str,
) -> tuple[PreTrainedModel, list[int]]:
    """Reads all weights and quantises those that can be, on the device; see Reader in lp/model/checkpoint.py.

    probes: texts as tokens, for which the log says what quantising changes; none stands for made-up ones. setting: the
    name of the one that asks for it. Raises CheckpointError.
    """
    started = time.monotonic()
    model = empty_model(config, dtype)
    with WeightFiles(path) as files:
        found = _read_all(files, model, dtype)
    fill(model, found, device)
    tokens = _tokens(probes, config.get_text_config(decoder=True).vocab_size).to(device)
    try:
        expected = _logits(model, tokens)
    except NotImplementedError as error:
        raise CheckpointError(
            f"{setting}={weights}: {type(model).__name__} does something with its weights that quantised ones cannot "
            f"({error}); use {setting}=auto"
        ) from error
    tensors = {
        name: pack_for(_quantized(one, bits_of(model, name, weights), device), device)
        if isinstance(one, QuantizedWeight)
        else one
        for name, one in found.items()
    }
    fill(model, tensors, device)
    error, share = _difference(_logits(model, tokens), expected)
    log.info(
        "%s=%s: the weights take %.3g GB (quantised in %.0f s); on %d tokens of text the logits differ by %.2g%% from "
        "those of the checkpoint, and its best token is the best one on %.0f%%%s",
        setting,
        weights,
        num_weight_bytes(model) / 1e9,
        time.monotonic() - started,
        tokens.numel(),
        100 * error,
        100 * share,
        ". The text is that of the quantised model" if setting == MODEL_WEIGHTS else "",
    )
    return model, list(range(config.get_text_config(decoder=True).num_hidden_layers))


class QuantizingFiles(FilesOfQuantized):
    """The tensors of a checkpoint for a rank that reads parts of them; weights that can be are quantised."""

    def __init__(self, path: str, weights: Weights):
        """path: folder or hub id. Raises CheckpointError."""
        super().__init__(path)
        self._kind = weights
        self._bits: dict[FileKey, int] = {}

    def _find_names(self, model: PreTrainedModel) -> dict[str, FileKey]:
        names, twins = without_twins(self._files, model, self._files.names(model)), twins_of(model)
        for name in model.state_dict():
            key = names.get(name) or names.get(twins.get(name, name))
            if key is not None and can_quantize(model, name):
                self._files.check_floating(key)
                self._bits[key] = bits_of(model, name, self._kind)
        return names

    def _weights(
        self, key: FileKey, num_experts: int | None, shape: tuple[int, int], shard: Shard | None,
        dtype: torch.dtype,
    ) -> list[QuantizedWeight] | None:  # fmt: skip
        """See FilesOfQuantized. Groups end where a shard does, so these are shards of the quantised weights."""
        if key not in self._bits:
            return None
        if shard is not None and shard.dim == 1:
            for inputs in shard.ranges:
                check_inputs(inputs)
        found = []
        for parts in stored_weights(self._files, key, num_experts, shape, key in self._transposed):
            whole = _joined(parts)
            own = whole if shard is None else _joined([whole[bounds] for bounds in shard.bounds(shape)])
            found.append(quantize(own, self._bits[key], dtype))
        return found


def stored_weights(
    files: WeightFiles, key: FileKey, num_experts: int | None, shape: tuple[int, int], transposed: bool
) -> Iterator[list[Tensor]]:
    """The weight [N, K] of a file, or those of all experts: the parts of each, one below the other.

    shape: N, K. transposed: whether the file has [E, K, N]. Raises CheckpointError.
    """
    if isinstance(key, Matrices):
        for keys in zip(*key.parts, strict=True):
            yield [_checked(files, one, (shape[0] // len(keys), shape[1])) for one in keys]
    elif isinstance(key, Joined):
        yield [files.view(one) for one in key.keys]
    elif num_experts is None:
        yield [_checked(files, key, shape)]
    else:
        for one in _checked(files, key, (num_experts, *(shape[::-1] if transposed else shape))):
            yield [one.t() if transposed else one]


def _checked(files: WeightFiles, key: str, shape: tuple[int, ...]) -> Tensor:
    """A tensor as it is in the file. Raises CheckpointError if it has another shape."""
    stored = files.view(key)
    if tuple(stored.shape) != shape:
        raise CheckpointError(f"{key} of {files.path!r} has shape {list(stored.shape)}, not {list(shape)}")
    return stored


def _joined(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _read_all(files: WeightFiles, model: PreTrainedModel, dtype: torch.dtype) -> dict[str, Tensor | QuantizedWeight]:
    """The tensors of a model by its own names. Weights that can be quantised are left in the file."""
    names = without_twins(files, model, files.names(model))
    tensors: dict[str, Tensor | QuantizedWeight] = {}
    for name, empty in model.state_dict().items():
        if (key := names.get(name)) is None:
            continue
        if not can_quantize(model, name):
            tensors[name] = files.read(key, empty.shape, None, dtype, CPU)
            continue
        files.check_floating(key)
        transposed = is_transposed(model, name)
        *num_experts, num_outputs, num_inputs = empty.mT.shape if transposed else empty.shape
        number, shape = num_experts[0] if num_experts else None, (num_outputs, num_inputs)
        stored = [
            JoinedWeight([UnquantizedWeight(one, dtype) for one in parts])
            for parts in stored_weights(files, key, number, shape, transposed)
        ]
        if num_experts:
            tensors[name] = QuantizedExperts(stored)
        else:
            tensors[name] = stored[0] if len(stored[0].parts) > 1 else stored[0].parts[0]
    return tensors


def can_quantize(model: PreTrainedModel, name: str) -> bool:
    """Whether a parameter can be quantised. Those that transformers keeps in float32, as of routers, cannot."""
    is_kept = any(f".{part}." in f".{name}." for part in model._keep_in_fp32_modules or ())
    if is_kept or not takes_quantized(model, name):
        return False
    return model.get_parameter(name).shape[-2 if is_transposed(model, name) else -1] % GROUP == 0


def _quantized(weight: QuantizedWeight, bits: int, device: torch.device) -> QuantizedWeight:
    if isinstance(weight, QuantizedExperts):
        return QuantizedExperts([_quantized(one, bits, device) for one in weight.experts])
    if isinstance(weight, JoinedWeight):
        return JoinedWeight([_quantized(one, bits, device) for one in weight.parts])
    assert isinstance(weight, UnquantizedWeight)
    return quantize(weight.stored, bits, weight.dtype, device)


def bits_of(model: PreTrainedModel, name: str, weights: Weights) -> int:
    """Embeddings and the output head have 8 bits, since an error there is not evened out by later layers."""
    module = model.get_submodule(name.rpartition(".")[0])
    is_inner = not isinstance(module, nn.Embedding) and module is not model.get_output_embeddings()
    return 4 if weights is Weights.int4 and is_inner else 8


def bytes_of_number(model: PreTrainedModel, name: str, weights: Weights) -> float:
    """The bytes that a number of a parameter takes once it is quantised, if it can be."""
    weight = model.get_parameter(name)
    if not can_quantize(model, name):
        return weight.dtype.itemsize
    return bits_of(model, name, weights) / 8 + torch.float16.itemsize / GROUP


def _tokens(probes: Probes, vocab_size: int) -> Tensor:
    """int64 [texts, tokens], each text as long as the shortest one."""
    texts = probes or spread_probes(vocab_size)
    length = min(map(len, texts))
    return torch.tensor([text[:length] for text in texts]) % vocab_size


@torch.inference_mode()
def _logits(model: PreTrainedModel, tokens: Tensor) -> Tensor:
    """float32 [texts, tokens, V]."""
    return model(input_ids=tokens, use_cache=False).logits.float()


def _difference(found: Tensor, expected: Tensor) -> tuple[float, float]:
    """The median relative error of logits [..., V], and the share of tokens after which the best one is the same."""
    spread = (expected - expected.mean(-1, keepdim=True)).norm(dim=-1)
    errors = (found - expected).norm(dim=-1) / spread.clamp_min(1e-9)
    return errors.median().item(), (found.argmax(-1) == expected.argmax(-1)).float().mean().item()


def quantize(weight: Tensor, bits: int, dtype: torch.dtype, device: torch.device = CPU) -> IntegerWeight:
    """Quantises a weight [N, K] of any floating-point format. dtype: of the model."""
    num_outputs, num_inputs = weight.shape
    packed = torch.empty(num_outputs, num_inputs * bits // 8, dtype=torch.uint8, device=device)
    scales = torch.empty(num_outputs, num_inputs // GROUP, dtype=torch.float16, device=device)
    at_once = max(1, (AT_ONCE if device.type == "cpu" else AT_ONCE_ON_GPU) // num_inputs)
    for first in range(0, num_outputs, at_once):
        some = weight[first : first + at_once].to(device).float()
        codes, own = quantize_groups(some.reshape(-1, GROUP), bits)
        codes = codes.view(len(some), -1)
        packed[first : first + at_once] = codes if bits == 8 else codes[:, 0::2] | codes[:, 1::2] << 4
        scales[first : first + at_once] = own.view(len(some), -1)
    return IntegerWeight(packed, scales, bits, dtype)


def quantize_groups(groups: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    """Codes uint8 [n, S] and scales float16 [n] of groups float32 [n, S], with little squared error.

    For given codes the best scale has a closed form, and for a given scale the best codes are the nearest ones. From
    each of a few scales one follows from the other in turn.
    """
    middle = 1 << (bits - 1)
    largest = groups.gather(1, groups.abs().argmax(dim=1, keepdim=True))
    # A negative scale where that lets the largest number have the one code that has no opposite.
    starts = [largest / -middle, *(largest.abs() * (factor / (middle - 1)) for factor in FACTORS[bits])]
    best, most = starts[0], torch.zeros_like(largest)
    for scale in starts:
        for _ in range(NUM_REFINEMENTS):
            codes = _nearest(groups, scale, middle)
            projected, power = (groups * codes).sum(1, keepdim=True), codes.square().sum(1, keepdim=True).clamp_min_(1)
            scale = projected / power
        explained = projected * scale  # of the sum of squares
        is_better = explained > most
        best, most = torch.where(is_better, scale, best), torch.where(is_better, explained, most)
    best = best.half()
    return (_nearest(groups, best, middle) + middle).to(torch.uint8), best[:, 0]


def _nearest(groups: Tensor, scale: Tensor, middle: int) -> Tensor:
    """float32: the codes nearest to numbers, 0 being in the middle."""
    scale = scale.float()
    return (groups / torch.where(scale == 0, 1.0, scale)).round_().clamp_(-middle, middle - 1)
