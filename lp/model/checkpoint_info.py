"""Reads all of a Hugging Face checkpoint but its weights: configuration, tokenizer, defaults for generation.

No remote code is run, and every error names what the user can do. Knows nothing of devices.
"""

from __future__ import annotations

import logging
import os
import re
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit
from urllib.request import getproxies

from huggingface_hub.errors import StrictDataclassError
from transformers import AutoConfig, AutoTokenizer, GenerationConfig, PreTrainedConfig, PreTrainedTokenizerFast
from transformers.utils import CONFIG_NAME

from lp.grammar.compiler import Grammars, pick_backend
from lp.grammar.settings import GrammarBackend
from lp.model.errors import CheckpointError, one_line
from lp.model.exactness import UnsupportedArchitecture, check_config, check_forward
from lp.model.gguf import checkpoint_folder, linked_file
from lp.model.heads.files import OFF, digest_of_heads, find_heads
from lp.model.heads.medusa import HeadsInfo
from lp.model.quantization.methods import find_method

if TYPE_CHECKING:  # it needs the package gguf
    from lp.model.gguf_header import GgufHeader

log = logging.getLogger("lookahead")

# Settings of generation_config.json that change the output of `generate` but are not applied here.
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
# Seconds within which the hub must take a connection.
HUB_TIMEOUT_S = 1.5
HUB_ID = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?")
# Kinds of rotary embedding whose angles change once a text is longer than the original context.
SHIFTING_ROPE = {"dynamic", "longrope"}


@dataclass
class CheckpointInfo:
    """A checkpoint without its weights, whose configuration does not rule out exact decoding.

    path: the folder or hub id that was read. generation: the defaults of `generate`. max_length: the most tokens of a
    sequence, which is the model's limit or a lower one that the user has set. eos: end-of-sequence tokens.
    grammar_backend: what compiles grammars. heads: the folder of the model's heads, and what they are like; None if
    there are none. plain: why its steps have one token each; empty if it can answer token trees, as far as is known.
    """

    name: str
    path: str
    config: PreTrainedConfig
    tokenizer: PreTrainedTokenizerFast
    generation: GenerationConfig
    max_length: int
    eos: list[int]
    grammar_backend: GrammarBackend
    heads: tuple[Path, HeadsInfo] | None = None
    plain: str = ""

    @property
    def vocab_size(self) -> int:
        return self.config.get_text_config(decoder=True).vocab_size

    @cached_property
    def heads_digest(self) -> str | None:
        """What ranks compare to know that they have the same heads."""
        return self.heads and digest_of_heads(*self.heads)

    @cached_property
    def grammars(self) -> Grammars:
        """Compiles grammars for the tokenizer, and caches them."""
        return Grammars(self.tokenizer, self.vocab_size, self.eos, self.grammar_backend)


def read_checkpoint_info(
    path: str,
    max_length: int | None = None,
    grammar_backend: GrammarBackend = GrammarBackend.auto,
    heads: str = OFF,
    begin: Callable[[GgufHeader], None] | None = None,
) -> CheckpointInfo:
    """Reads a checkpoint's configuration, tokenizer and generation defaults, and what its heads are like.

    path: folder, GGUF file or hub id; a GGUF file is unpacked first if it has not been yet. max_length: None means the
    model's own limit. heads: see ModelSettings. begin: see checkpoint_folder. Raises CheckpointError,
    UnsupportedArchitecture or ValueError, each with a message of one line for the user.
    """
    pick_backend(grammar_backend)
    path = checkpoint_folder(os.path.expanduser(path), begin)
    _check_folder(path)
    if not os.path.isdir(path):
        check_hub(path)
    config = _read_config(path)
    length = _max_length(config, max_length)
    plain = _why_plain(config, length)
    find_method(config)
    generation = _read_generation(path, config)
    _warn_of_ignored(generation, path)
    tokenizer = _read_tokenizer(path)
    name = Path(os.path.abspath(path)).name
    eos = _eos(generation, config, tokenizer)
    found = find_heads(heads, path, config)
    return CheckpointInfo(name, path, config, tokenizer, generation, length, eos, grammar_backend, found, plain)


def require_trees(
    known: CheckpointInfo, what: str = "several ranks", remedy: str = "parallel=single, without launcher=local"
) -> None:
    """Raises UnsupportedArchitecture for a model whose steps have one token each. what: needs token trees. remedy: what
    the user can do.
    """
    if known.plain:
        raise UnsupportedArchitecture(
            f"{known.plain}. Token by token it can be decoded, but not with {what}: use {remedy}"
        )


def _why_plain(config: PreTrainedConfig, max_length: int) -> str:
    """Why the configuration rules out token trees; empty if it does not. Raises UnsupportedArchitecture if it rules out
    decoding.
    """
    try:
        check_config(config)
        check_forward(config, max_length)
    except UnsupportedArchitecture as error:
        if config.is_encoder_decoder:
            raise
        return str(error)
    return ""


def _check_folder(path: str) -> None:
    """Raises CheckpointError for a folder that is no checkpoint, and for a path to a folder that does not exist.

    A name of the form of a hub id passes, unless the folder before its slash exists.
    """
    folder = Path(path)
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise CheckpointError(f"model.path={path!r} has no config.json: it is not a Hugging Face checkpoint folder")
        if linked_file(path) is None and not any(folder.glob("*.safetensors")):
            others = [f.name for f in folder.iterdir() if f.suffix in (".bin", ".pt", ".pth", ".ckpt")]
            found = f"found only {', '.join(sorted(others))}, which is pickle" if others else "it holds no weights"
            raise CheckpointError(f"model.path={path!r}: {found}; convert the weights to safetensors (save_pretrained)")
    elif not HUB_ID.fullmatch(path) or ("/" in path and folder.parent.is_dir()):
        raise CheckpointError(
            f"model.path={path!r} is not a folder; give a checkpoint's folder, a GGUF file or a hub id"
        )


def check_hub(name: str, within_s: float = HUB_TIMEOUT_S) -> None:
    """Raises CheckpointError for a model of the hub that is not on the disk while the hub cannot be reached.

    Otherwise its client would try again for half a minute. Behind a proxy the client itself finds out.
    """
    from huggingface_hub import constants, try_to_load_from_cache

    if isinstance(try_to_load_from_cache(name, CONFIG_NAME), str) or getproxies().get("https"):
        return
    hub = urlsplit(constants.ENDPOINT)
    address = hub.hostname or "", hub.port or (80 if hub.scheme == "http" else 443)
    found: list[bool] = []

    def connect() -> None:  # a name server may keep it waiting for longer than the time limit of the connection
        with suppress(OSError), socket.create_connection(address, within_s):
            found.append(True)

    trying = threading.Thread(target=connect, name="hub", daemon=True)
    trying.start()
    trying.join(within_s)
    if not found:
        raise CheckpointError(
            f"model.path={name!r} is neither a folder nor a model that was downloaded earlier, and {address[0]} cannot "
            "be reached: check the name and the network, or give a folder or a GGUF file"
        )


def _read_config(path: str) -> PreTrainedConfig:
    try:
        return AutoConfig.from_pretrained(path, trust_remote_code=False)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, StrictDataclassError) as error:
        raise CheckpointError(f"the configuration of {path!r} cannot be used: {one_line(error)}") from error


def _read_generation(path: str, config: PreTrainedConfig) -> GenerationConfig:
    try:
        return GenerationConfig.from_pretrained(path)
    except OSError:  # no such file: `generate` takes its defaults from config.json
        return GenerationConfig.from_model_config(config)
    except (ValueError, TypeError, AttributeError) as error:
        raise CheckpointError(f"generation_config.json of {path!r} cannot be used: {one_line(error)}") from error


def _warn_of_ignored(generation: GenerationConfig, path: str) -> None:
    ignored = [name for name in NOT_APPLIED if getattr(generation, name, None) not in (None, 0, 1.0, [])]
    if ignored:
        log.warning("generation_config.json of %s sets %s, not applied here", path, ", ".join(ignored))


def _read_tokenizer(path: str) -> PreTrainedTokenizerFast:
    try:
        tokenizer = AutoTokenizer.from_pretrained(path, trust_remote_code=False)
    except (OSError, ValueError, KeyError, TypeError, ImportError) as error:
        raise CheckpointError(f"the tokenizer of {path!r} cannot be loaded: {one_line(error)}") from error
    if getattr(tokenizer, "backend_tokenizer", None) is None:
        raise CheckpointError(f"the tokenizer of {path!r} has no tokenizer.json; convert it to a fast tokenizer")
    return tokenizer


def _max_length(config: PreTrainedConfig, wanted: int | None) -> int:
    """The most tokens of a sequence: the wanted number, or the model's limit if None. Raises ValueError.

    The limit of rotary embeddings whose angles change with the length is the context before the change.
    """
    text = config.get_text_config(decoder=True)
    limit = getattr(text, "max_position_embeddings", None) or getattr(text, "n_positions", None) or 2048
    rope = getattr(text, "rope_parameters", None) or {}
    # Some configurations nest one dictionary for each type of layer.
    for kind in (rope, *(nested for nested in rope.values() if isinstance(nested, dict))):
        if kind.get("rope_type") in SHIFTING_ROPE:
            limit = min(limit, kind.get("original_max_position_embeddings") or limit)
    if wanted is None:
        return limit
    if not 2 <= wanted <= limit:
        raise ValueError(f"model.max_length={wanted} must be from 2 to the model's own limit of {limit} tokens")
    return wanted


def _eos(generation: GenerationConfig, config: PreTrainedConfig, tokenizer: PreTrainedTokenizerFast) -> list[int]:
    """End-of-sequence ids, from the first of generation config, config and tokenizer that names any."""
    for eos in (generation.eos_token_id, getattr(config, "eos_token_id", None), tokenizer.eos_token_id):
        if eos is not None:
            return [int(token) for token in (eos if isinstance(eos, list | tuple) else [eos])]
    return []
