"""Loads Hugging Face checkpoints: safetensors only, no remote code, with errors that a user can act on."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

from lp.cache_files import folder
from lp.model.causal import CausalModel
from lp.model.compilation import CompileMode, make_fast
from lp.model.exactness import check_config, check_tree
from lp.model.kernels import AttentionKind
from lp.model.memory import check_fits

log = logging.getLogger("lookahead")

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
NOT_APPLIED = (
    "bad_words_ids",
    "begin_suppress_tokens",
    "epsilon_cutoff",
    "eta_cutoff",
    "exponential_decay_length_penalty",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "guidance_scale",
    "min_length",
    "sequence_bias",
    "suppress_tokens",
    "typical_p",
)
"""Settings of generation_config.json that would change the output of `generate` and are not applied here."""
HUB_ID = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?")
SHIFTING_ROPE = {"dynamic", "longrope"}
"""Rotary embeddings whose angles change once a text is longer than the original context."""


class CheckpointError(ValueError):
    """A checkpoint that cannot be used; the message says why and what to do."""


@dataclass
class ModelSettings:
    """Which model, and how it is held.

    path: folder or hub id. dtype: float32, bfloat16 or float16. device: auto, cpu, cuda or cuda:N. max_length: None is
    the model's own limit. compile: see CompileMode.
    """

    path: str = "demo/python-11m"
    dtype: str = "float32"
    device: str = "auto"
    max_length: int | None = None
    compile: CompileMode = CompileMode.auto


@dataclass
class Checkpoint:
    """A model that has been found exact, with its tokenizer and its defaults for generation."""

    name: str
    model: CausalModel
    tokenizer: PreTrainedTokenizerFast
    generation: GenerationConfig


def pick_device(device: str) -> torch.device:
    """auto is the first GPU if there is one. Raises ValueError."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        picked = torch.device(device)
    except RuntimeError:
        raise ValueError(f"device={device!r} is unknown; use auto, cpu or cuda") from None
    if picked.type not in ("cpu", "cuda"):
        raise ValueError(f"device={device!r} is not supported; use auto, cpu or cuda")
    if picked.type == "cuda" and (picked.index or 0) >= torch.cuda.device_count():
        raise ValueError(f"device={device!r} is not there: torch sees {torch.cuda.device_count()} GPUs; use device=cpu")
    return picked


def pick_dtype(dtype: str) -> torch.dtype:
    if dtype not in DTYPES:
        raise ValueError(f"dtype={dtype!r} is unknown; use {', '.join(DTYPES)}")
    return DTYPES[dtype]


Reader = Callable[[str, PreTrainedConfig, torch.dtype, torch.device], tuple[PreTrainedModel, list[int]]]
"""Reads a checkpoint's weights: (path, config, dtype, device) -> (model, indices of the layers that it really holds).
Raises CheckpointError or ValueError.
"""


def load(
    settings: ModelSettings, attention: AttentionKind = AttentionKind.auto, reader: Reader | None = None
) -> Checkpoint:
    """Raises CheckpointError, UnsupportedArchitecture or ValueError, each with one message for the user.

    reader: reads a part of the model, for a rank that holds no more; None reads all of it.
    """
    dtype, device = pick_dtype(settings.dtype), pick_device(settings.device)
    settings = replace(settings, path=os.path.expanduser(settings.path))
    _check_folder(settings.path)
    config = _read_config(settings.path)
    check_config(config)
    max_length = _max_length(config, settings.max_length)
    if reader is None:
        check_fits(settings.path, config, dtype, device, max_length)
    model, layers = (reader or read_whole)(settings.path, config, dtype, device)
    generation = _read_generation(settings.path, config)
    _warn_of_ignored(generation, settings.path)
    tokenizer = _read_tokenizer(settings.path)
    causal = CausalModel(model, max_length, _eos(generation, config, tokenizer), attention, layers)
    check_tree(causal)
    if reader is None:
        make_fast(causal, settings.compile, folder("compiled"))
    elif settings.compile is CompileMode.on:
        raise ValueError("model.compile=on is for a rank that holds the whole model; use model.compile=off")
    return Checkpoint(Path(os.path.abspath(settings.path)).name, causal, tokenizer, generation)


def _warn_of_ignored(generation: GenerationConfig, path: str) -> None:
    ignored = [name for name in NOT_APPLIED if getattr(generation, name, None) not in (None, 0, 1.0, [])]
    if ignored:
        log.warning("generation_config.json of %s sets %s, not applied here", path, ", ".join(ignored))


def _check_folder(path: str) -> None:
    """What a folder must hold. A name that is no folder is taken for a hub id, unless it looks like a path."""
    folder = Path(path)
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise CheckpointError(f"model.path={path!r} has no config.json: it is not a Hugging Face checkpoint folder")
        if not any(folder.glob("*.safetensors")):
            others = [f.name for f in folder.iterdir() if f.suffix in (".bin", ".pt", ".pth", ".ckpt")]
            found = f"found only {', '.join(sorted(others))}, which is pickle" if others else "it holds no weights"
            raise CheckpointError(f"model.path={path!r}: {found}; convert the weights to safetensors (save_pretrained)")
    elif not HUB_ID.fullmatch(path) or ("/" in path and folder.parent.is_dir()):
        raise CheckpointError(f"model.path={path!r} is not a folder; give a checkpoint's folder or a hub id")


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__


def _read_config(path: str) -> PreTrainedConfig:
    try:
        return AutoConfig.from_pretrained(path, trust_remote_code=False)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, StrictDataclassError) as error:
        raise CheckpointError(f"the configuration of {path!r} cannot be used: {_one_line(error)}") from error


def _read_generation(path: str, config: PreTrainedConfig) -> GenerationConfig:
    try:
        return GenerationConfig.from_pretrained(path)
    except OSError:  # there is none: what `generate` would take is in config.json
        return GenerationConfig.from_model_config(config)
    except (ValueError, TypeError, AttributeError) as error:
        raise CheckpointError(f"generation_config.json of {path!r} cannot be used: {_one_line(error)}") from error


def read_whole(
    path: str, config: PreTrainedConfig, dtype: torch.dtype, device: torch.device
) -> tuple[PreTrainedModel, list[int]]:
    """The Reader of a rank that holds the whole model."""
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(  # with loading info it is a pair
            path,
            config=config,
            dtype=dtype,
            use_safetensors=True,
            trust_remote_code=False,
            attn_implementation="eager",
            ignore_mismatched_sizes=True,  # they are named below
            output_loading_info=True,
        )
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        raise CheckpointError(f"the model {path!r} cannot be loaded: {_one_line(error)}") from error
    model, found = loaded
    problems = {what: found.get(what) for what in ("missing_keys", "mismatched_keys", "error_msgs") if found.get(what)}
    for what, keys in problems.items():
        some = ", ".join(str(key) for key in list(keys)[:3])
        raise CheckpointError(
            f"the weights of {path!r} do not fit its config.json: {what.replace('_', ' ')} {some} ..."
        )
    return model.to(device), list(range(config.get_text_config(decoder=True).num_hidden_layers))


def _read_tokenizer(path: str) -> PreTrainedTokenizerFast:
    try:
        tokenizer = AutoTokenizer.from_pretrained(path, trust_remote_code=False)
    except (OSError, ValueError, KeyError, TypeError, ImportError) as error:
        raise CheckpointError(f"the tokenizer of {path!r} cannot be loaded: {_one_line(error)}") from error
    if getattr(tokenizer, "backend_tokenizer", None) is None:
        raise CheckpointError(f"the tokenizer of {path!r} has no tokenizer.json; convert it to a fast tokenizer")
    return tokenizer


def _max_length(config: PreTrainedConfig, wanted: int | None) -> int:
    """The model's positions; for rotary embeddings that shift with the length, those before the shift."""
    text = config.get_text_config(decoder=True)
    limit = getattr(text, "max_position_embeddings", None) or getattr(text, "n_positions", None) or 2048
    rope = getattr(text, "rope_parameters", None) or {}
    for kind in (rope, *(nested for nested in rope.values() if isinstance(nested, dict))):  # nested by type of layer
        if kind.get("rope_type") in SHIFTING_ROPE:
            limit = min(limit, kind.get("original_max_position_embeddings") or limit)
    if wanted is None:
        return limit
    if not 2 <= wanted <= limit:
        raise ValueError(f"model.max_length={wanted} must be from 2 to the model's own limit of {limit} tokens")
    return wanted


def _eos(generation: GenerationConfig, config: PreTrainedConfig, tokenizer: PreTrainedTokenizerFast) -> list[int]:
    """End-of-sequence ids by the first of generation config, config and tokenizer that names any."""
    for eos in (generation.eos_token_id, getattr(config, "eos_token_id", None), tokenizer.eos_token_id):
        if eos is not None:
            return [int(token) for token in (eos if isinstance(eos, list | tuple) else [eos])]
    return []
