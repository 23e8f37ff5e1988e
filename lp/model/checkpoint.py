"""Loads Hugging Face checkpoints, from safetensors files alone and without remote code.

Every error names what is wrong and what the user can do. Knows nothing of other ranks: a rank that holds a part of a
model passes a `Reader` of its own.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from lp.grammar.settings import GrammarBackend
from lp.model.causal import CausalModel
from lp.model.checkpoint_info import CheckpointInfo, read_checkpoint_info, require_trees
from lp.model.checks import Checks
from lp.model.compilation import CompileMode, begin_kernels, make_fast
from lp.model.errors import CheckpointError, described, one_line
from lp.model.exactness import UnsupportedArchitecture, check_tree
from lp.model.extensions import Extension
from lp.model.gguf import linked_file
from lp.model.gpu.cuda_graphs import Capture
from lp.model.gpu.make import merge_weights
from lp.model.heads.extension import HeadsExtension
from lp.model.kernels import AttentionKind
from lp.model.language_model import calls_interface, has_towers
from lp.model.memory import Bound, DoesNotFit, check_fits, find_bound, free_memory, parse_bound, stored_bytes
from lp.model.plain import make_plain
from lp.model.probes import text_probes
from lp.model.program.group import RankGroup
from lp.model.program.translate import find_shapes
from lp.model.quantization.checkpoints import read_quantized
from lp.model.quantization.methods import find_method
from lp.model.quantization.model import empty_model, fill
from lp.model.quantization.parameter import (
    QuantizedParameter,
    drop_unpacked,
    keep_unpacked,
    quantized_parameters,
)
from lp.model.quantization.quantize import MODEL_WEIGHTS, Weights, bytes_of_number, read_and_quantize
from lp.model.reference import Reference
from lp.model.weight_files import WeightFiles
from lp.platform import build as kernels
from lp.platform.disk_cache import folder
from lp.platform.hardware import dtype_name, require_float32, why_no_gpu

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
# The dtype that fits the device.
AUTO = "auto"
# The share of the available memory that quantised weights may take unpacked, for the model's own forward.
UNPACKED_SHARE = 0.4

log = logging.getLogger("lookahead")


class Invariance(StrEnum):
    """Whether a row's logits must be the same to the last bit whatever other rows are in the step.

    Then text does not depend on the decoding method, the window or the number of lp ranks, in 16 bits as in float32.

    auto: they are the same wherever the forward is compiled natively. on: a model that cannot be is refused.
    """

    auto = "auto"
    on = "on"


@dataclass
class ModelSettings:
    """Which model to load, and how.

    path: folder, GGUF file or hub id. dtype: float32, bfloat16, float16 or auto (see pick_dtype). weights: see Weights.
    device: auto, cpu, cuda or cuda:N.
    max_length: the most tokens of a sequence; None means the model's own limit. compile: see CompileMode.
    invariant: see Invariance. kv_memory: the most memory for keys and values in GB, or auto (see lp/model/memory.py).
    grammar_backend: see GrammarBackend. heads: the folder of the heads for decode=medusa; auto is `heads` next to the
    weights if there is one, off is none.
    """

    path: str = "demo/python-11m"
    dtype: str = AUTO
    device: str = "auto"
    weights: Weights = Weights.auto
    max_length: int | None = None
    compile: CompileMode = CompileMode.auto
    invariant: Invariance = Invariance.auto
    kv_memory: str = AUTO
    grammar_backend: GrammarBackend = GrammarBackend.auto
    heads: str = AUTO


@dataclass
class Checkpoint(CheckpointInfo):
    """A checkpoint with its model, which has passed the check that tree attention is exact for it.

    extensions: heads and second models, by their roles.
    """

    model: CausalModel = field(kw_only=True)
    extensions: dict[str, Extension] = field(default_factory=dict)

    @property
    def models(self) -> list[CausalModel]:
        """The main model, and all others that have memory of their own."""
        own = [one.model for one in self.extensions.values() if one.model and not one.shares_memory]
        return [self.model, *own]


def pick_device(device: str) -> torch.device:
    """The device of that name; "auto" is a GPU if there is one, else the CPU. Raises ValueError."""
    reason = "" if device == "cpu" else why_no_gpu()
    if device == "auto":
        if reason:
            log.warning("computing on the CPU: %s", reason)
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        picked = torch.device(device)
    except RuntimeError:
        raise ValueError(f"device={device!r} is unknown; use auto, cpu or cuda") from None
    if picked.type not in ("cpu", "cuda"):
        raise ValueError(f"device={device!r} is not supported; use auto, cpu or cuda")
    if picked.type == "cuda" and reason:
        raise ValueError(f"device={device!r} cannot be used: {reason}; or use device=cpu")
    if picked.type == "cuda" and (picked.index or 0) >= torch.cuda.device_count():
        raise ValueError(f"device={device!r} is not there: torch sees {torch.cuda.device_count()} GPUs; use device=cpu")
    return picked


def pick_dtype(dtype: str, device: torch.device, config: PreTrainedConfig) -> torch.dtype:
    """The dtype of that name; "auto" is float32 on a CPU, and the checkpoint's own on a GPU. Raises ValueError.

    config: the checkpoint's.
    """
    check_dtype(dtype)
    if dtype == AUTO:
        own = dtype_name(config.get_text_config(decoder=True).dtype or config.dtype)
        return DTYPES.get(own, torch.float32) if device.type == "cuda" else torch.float32
    return DTYPES[dtype]


def check_dtype(dtype: str) -> None:
    """Raises ValueError for a name that `pick_dtype` does not know."""
    if dtype not in (AUTO, *DTYPES):
        raise ValueError(f"dtype={dtype!r} is unknown; use {AUTO}, {', '.join(DTYPES)}")


def _tell_dtype(chosen: torch.dtype, settings: ModelSettings) -> None:
    """Logs what it means for the text that "auto" has chosen a format of 16 bits."""
    if settings.dtype == AUTO and chosen != torch.float32:
        log.info(
            "model.dtype=auto: the model runs in %s, its own format. Its text is that of transformers in this format, "
            "up to rounding; model.dtype=float32 gives the same tokens as transformers, more slowly",
            dtype_name(chosen),
        )


# Reads a checkpoint's weights: (path, config, dtype, device, weights) -> (model, indices of the layers that it really
# holds). Raises CheckpointError or ValueError.
Reader = Callable[[str, PreTrainedConfig, torch.dtype, torch.device, Weights], tuple[PreTrainedModel, list[int]]]


def load(
    settings: ModelSettings,
    attention: AttentionKind = AttentionKind.auto,
    reader: Reader | None = None,
    num_sharing: int = 1,
    capture: Capture | None = None,
    extensions: Iterable[Extension] = (),
    group: RankGroup | None = None,
    is_alone: bool = True,
) -> Checkpoint:
    """Loads a checkpoint, checks that tree attention is exact for it, and makes its forward fast if that pays.

    reader: reads the weights, for a rank that holds only a part of the model; None reads the whole model. num_sharing:
    the number of ranks that share this machine's memory. capture: makes CUDA graphs of the forward of a rank with a
    part of the model; None makes none. extensions: in addition to the heads that the settings name. group: the ranks
    that share the model, this one among them; None is for a rank that holds the whole model. is_alone: whether no
    other rank decodes the same requests.
    Raises CheckpointError, UnsupportedArchitecture or ValueError, each with a message of one line for the user.
    """
    is_alone = is_alone and reader is None
    kv_bytes = parse_bound(settings.kv_memory)
    device = pick_device(settings.device)
    is_compiled = reader is None or (group is not None and (device.type == "cpu" or capture is not None))
    _check_compilation(settings, reader is None, is_compiled, device)
    begin = None
    if is_compiled and device.type == "cpu":
        begin = partial(begin_kernels, mode=settings.compile, dtype=DTYPES.get(settings.dtype, torch.float32))
    known = read_checkpoint_info(settings.path, settings.max_length, settings.grammar_backend, settings.heads, begin)
    _check_weights(settings.weights, known, reader is None, device)
    dtype = pick_dtype(settings.dtype, device, known.config)
    _tell_dtype(dtype, settings)
    if dtype == torch.float32:
        require_float32(device)
    second_models = [*extensions]
    if known.plain:
        _check_plain(known, settings, is_alone, second_models)
        kv_bytes = kv_bytes or 0.0  # what a sequence needs is not known before the model has run
    extensions = [*second_models, *([HeadsExtension(*known.heads)] if known.heads else [])]
    for extension in extensions:
        extension.check(known)
    if reader is None or group is not None:
        num_parts, num_bytes = group.num_ranks if group else 1, None
        if reader is None and device.type == "cuda":
            is_packed = is_compiled and settings.compile is not CompileMode.off and not kernels.missing_triton()
            num_bytes = weight_bytes(known, dtype, settings.weights, is_packed)
        check_fits(known.path, known.config, dtype, device, known.max_length, kv_bytes, num_parts, num_bytes)
    given = known.path, known.config, dtype, device
    if reader is not None:
        model, layers = reader(*given, settings.weights)
    elif settings.weights is Weights.auto:
        model, layers = read_whole(*given)
    else:
        model, layers = read_and_quantize(*given, settings.weights, text_probes(known.tokenizer), MODEL_WEIGHTS)
    if known.plain:
        return _load_plain(known, model, settings, num_sharing)
    try:
        causal = _make_causal(model, known, attention, layers)
        facts = dtype, settings.weights, causal.attention_kind, known.max_length, settings.compile, settings.invariant
        checks = Checks(known.path, device, *facts) if reader is None else None
        is_checked = checks is not None and checks.have_passed
        if not (is_checked and settings.compile is not CompileMode.off):
            keep_unpacked(model, UNPACKED_SHARE * free_memory(device) / num_sharing)
        references = None if is_checked else check_tree(causal, text_probes(known.tokenizer))
    except UnsupportedArchitecture as error:
        check_finite(known.path, model)
        if reader is not None and calls_interface(known.config):  # so the whole model can, as far as is known
            raise UnsupportedArchitecture(
                f"what a rank holds of the model cannot be decoded: {error}; use parallel=lp, or parallel=single"
            ) from error
        known.plain = str(error)
        _check_plain(known, settings, is_alone, second_models)
        return _load_plain(known, model, settings, num_sharing)
    if is_checked:
        causal.cache_shapes = find_shapes(causal)
    if device.type == "cuda" and known.heads and not (causal.is_first_stage and causal.is_last_stage):
        is_compiled = False  # graphs do not give the hidden states that heads read
    extensions = [extension for extension in extensions if _load_extension(extension, causal, known)]
    checkpoint = Checkpoint(**vars(known), model=causal, extensions={one.role: one for one in extensions})
    models = [causal, *(one.model for one in extensions if one.model)]
    if device.type == "cuda":
        _lay_out_weights(models, settings.compile, is_compiled)
    bound = find_bound(settings.kv_memory, causal.device, num_sharing)
    if device.type == "cuda":  # graphs hold the addresses of keys and values
        _share_memory(bound, checkpoint.models)
    else:
        causal.open_memory(len(causal.cache_shapes))
    if is_compiled:
        has_passed = _make_fast(causal, settings, references, capture, is_checked, group)
        if checks and has_passed:
            checks.note()
    if device.type != "cuda":  # the compiled forward may cache less of a token
        _share_memory(bound, checkpoint.models)
    for extension in extensions:
        extension.attach(causal, settings.compile)
    for one in models if device.type == "cuda" else [causal]:
        if one.fast is None:  # a tiny model, or one whose fast forward has failed its check
            keep_unpacked(one.model, UNPACKED_SHARE * free_memory(device) / num_sharing)
    causal.free_weights()
    causal.grammars = checkpoint.grammars
    return checkpoint


def _make_causal(
    model: PreTrainedModel, known: CheckpointInfo, attention: AttentionKind, layers: list[int]
) -> CausalModel:
    """Raises UnsupportedArchitecture for a configuration in which something that tree attention needs is missing."""
    try:
        return CausalModel(model, known.max_length, known.eos, attention, layers)
    except (AttributeError, KeyError, TypeError, RuntimeError) as error:
        name = type(model).__name__
        raise UnsupportedArchitecture(f"{name} cannot be run with a token tree: {described(error)}") from error


def _check_plain(
    known: CheckpointInfo, settings: ModelSettings, is_alone: bool, second_models: Sequence[Extension]
) -> None:
    """Raises UnsupportedArchitecture for a model that can only be decoded plainly where that is not enough."""
    if not is_alone:
        require_trees(known)
    if settings.compile is CompileMode.on:
        require_trees(known, "model.compile=on", "model.compile=auto")
    if settings.invariant is Invariance.on:
        require_trees(known, "model.invariant=on", "model.invariant=auto")
    if second_models:
        require_trees(known, "a second model", "no setting of draft or second")


def _load_plain(known: CheckpointInfo, model: PreTrainedModel, settings: ModelSettings, num_sharing: int) -> Checkpoint:
    """A checkpoint whose steps have one token each, as transformers' own are. Raises UnsupportedArchitecture."""
    try:
        plain = make_plain(model, known.max_length, known.eos, text_probes(known.tokenizer), known.plain)
    except UnsupportedArchitecture:
        check_finite(known.path, model)
        raise
    keep_unpacked(model, UNPACKED_SHARE * free_memory(plain.device) / num_sharing)
    log.warning("every step gives one token, whatever the method (decode=autoregressive): %s", known.plain)
    _share_memory(find_bound(settings.kv_memory, plain.device, num_sharing), [plain])
    checkpoint = Checkpoint(**{**vars(known), "heads": None}, model=plain)
    plain.grammars = checkpoint.grammars
    return checkpoint


def check_finite(path: str, model: PreTrainedModel) -> None:
    """Raises CheckpointError naming the first weight that holds something that is not a finite number."""
    for name, weight in model.named_parameters():
        if not isinstance(weight, QuantizedParameter) and not weight.isfinite().all():
            what = "NaN" if weight.isnan().any() else "infinity"
            raise CheckpointError(f"the weights of {path!r} hold {what} in {name}; copy or download it again")


def _load_extension(extension: Extension, causal: CausalModel, known: CheckpointInfo) -> bool:
    """Loads an extension; returns False, and logs why, if it can be done without and does not fit."""
    try:
        extension.load(causal, known)
    except DoesNotFit as error:
        if not extension.is_optional:
            raise
        log.warning("%s; the model runs without it", error)
        return False
    return True


def _lay_out_weights(models: Sequence[CausalModel], mode: CompileMode, is_compiled: bool) -> None:
    """On a GPU: merges weights where a fused forward will run, and unpacks quantised ones where none will.

    models: the main one first. is_compiled: whether that one gets a fast forward.
    """
    for number, model in enumerate(models):
        drop_unpacked(model.model)
        is_wanted = mode is not CompileMode.off and (is_compiled or number > 0)
        num_quantized = len(quantized_parameters(model.model))
        if (number > 0 and not num_quantized) or (is_wanted and merge_weights(model)):
            continue
        if num_quantized:
            log.info("quantised weights are unpacked to %s, as no fused forward reads them", dtype_name(model.dtype))
            model.unpack_weights()


def weight_bytes(
    known: CheckpointInfo, dtype: torch.dtype, weights: Weights = Weights.auto, is_packed: bool = True
) -> float | None:
    """The bytes that a whole model's weights will take on a GPU; None if all have the dtype, as those of its files.

    is_packed: whether quantised weights stay so.
    """
    file = linked_file(known.path)
    is_quantized = file is not None or find_method(known.config) is not None or weights is not Weights.auto
    if not is_quantized:
        return None
    if is_packed and weights is Weights.auto:
        return stored_bytes(Path(known.path), dtype) if file is None else file.stat().st_size
    model = empty_model(known.config, dtype)
    model.tie_weights()
    return sum(
        weight.numel() * (bytes_of_number(model, name, weights) if is_packed else dtype.itemsize)
        for name, weight in model.named_parameters()
    )


def _share_memory(bound: Bound, models: Sequence[CausalModel]) -> None:
    """Gives models on one device their memory for keys and values, with the same number of pages for each."""
    for model, share in zip(models, bound.shared_by([model.numbers_per_token for model in models]), strict=True):
        model.bound_memory(share)


def _check_compilation(settings: ModelSettings, is_whole: bool, is_compiled: bool, device: torch.device) -> None:
    """Raises ValueError for what cannot be compiled, or cannot be invariant, whatever the model."""
    if settings.compile is CompileMode.on and not is_compiled:
        raise ValueError(
            "model.compile=on is for a rank that holds the whole model, or a part of every layer; use model.compile=off"
        )
    is_invariant = is_compiled and (is_whole or device.type == "cpu")
    if settings.invariant is Invariance.on and (settings.compile is CompileMode.off or not is_invariant):
        raise ValueError(
            "model.invariant=on needs the compiled forward of a rank that holds the whole model, or on a CPU a part of "
            "every layer; use parallel=single or parallel=lp, without model.compile=off, or use model.invariant=auto"
        )


def _check_weights(weights: Weights, known: CheckpointInfo, is_whole: bool, device: torch.device) -> None:
    """Raises ValueError for weights that cannot be quantised when they are read."""
    if weights is Weights.auto:
        return
    check_can_quantize(known, f"model.weights={weights}", "model.weights=auto")
    if device.type == "cuda" and not is_whole:
        raise ValueError(
            f"model.weights={weights} is on GPUs for ranks that hold the whole model; use parallel=single or "
            "parallel=lp, or model.weights=auto"
        )


def check_can_quantize(known: CheckpointInfo, setting: str, remedy: str) -> None:
    """Raises ValueError for a checkpoint whose weights are quantised already. setting, remedy: as a user gives them."""
    if (method := find_method(known.config)) is not None:
        raise ValueError(f"{setting}: the checkpoint is quantised already ({method.name}); use {remedy}")
    if linked_file(known.path) is not None:
        raise ValueError(
            f"{setting}: the weights of a GGUF file are read as they are; use {remedy}, or a checkpoint in safetensors"
        )


def _make_fast(
    causal: CausalModel,
    settings: ModelSettings,
    references: list[Reference] | None,
    capture: Capture | None,
    is_checked: bool,
    group: RankGroup | None,
) -> bool:
    """Makes the forward fast as the settings say; see `make_fast`. Raises ValueError if it cannot be as they demand."""
    is_demanded = settings.invariant is Invariance.on
    mode = CompileMode.on if is_demanded else settings.compile
    is_as_wanted = make_fast(causal, mode, folder("compiled"), references, capture, is_demanded, is_checked, group)
    if is_demanded and not (causal.fast and causal.fast.is_invariant):
        raise ValueError(
            "model.invariant=on: the sums of ranks that share no memory depend on the rows of a step; use "
            "model.invariant=auto, or ranks on one host"
        )
    return is_as_wanted


def read_whole(
    path: str, config: PreTrainedConfig, dtype: torch.dtype, device: torch.device
) -> tuple[PreTrainedModel, list[int]]:
    """Reads all weights as they are, for a rank that holds the whole model; see Reader."""
    if (file := linked_file(path)) is not None:
        from lp.model.quantization.gguf_file import read_gguf  # it needs the package gguf

        return read_gguf(file, config, dtype, device)
    if (method := find_method(config)) is not None:
        return read_quantized(path, config, method, dtype, device)
    if has_towers(config):
        return _read_language_model(path, config, dtype, device)
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(  # with output_loading_info it returns a pair
            path,
            config=config,
            dtype=dtype,
            use_safetensors=True,
            trust_remote_code=False,
            attn_implementation="eager",
            ignore_mismatched_sizes=True,  # reported below, by name
            output_loading_info=True,
            # Straight to a GPU: otherwise each rank would first hold all weights in the host's memory.
            device_map={"": device} if device.type == "cuda" else None,
        )
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        raise CheckpointError(f"the model {path!r} cannot be loaded: {one_line(error)}") from error
    model, found = loaded
    problems = {what: found.get(what) for what in ("missing_keys", "mismatched_keys", "error_msgs") if found.get(what)}
    for what, keys in problems.items():
        some = ", ".join(str(key) for key in list(keys)[:3])
        raise CheckpointError(
            f"the weights of {path!r} do not fit its config.json: {what.replace('_', ' ')} {some} ..."
        )
    return model.to(device), list(range(config.get_text_config(decoder=True).num_hidden_layers))


def _read_language_model(
    path: str, config: PreTrainedConfig, dtype: torch.dtype, device: torch.device
) -> tuple[PreTrainedModel, list[int]]:
    """Reads the weights of a model that has towers for images or sound, without those of the towers."""
    model = empty_model(config, dtype)
    with WeightFiles(path) as files:
        names = files.names(model)
        wanted = {name: empty for name, empty in model.state_dict().items() if name in names}
        fill(
            model,
            {name: files.read(names[name], one.shape, None, dtype, device) for name, one in wanted.items()},
            device,
        )
    log.info("the language model alone is loaded: images and sound are not read")
    return model, list(range(config.get_text_config(decoder=True).num_hidden_layers))
