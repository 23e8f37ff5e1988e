"""Heads on disk: a folder with the weights as safetensors and what they are like as JSON."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from transformers import PreTrainedConfig

from lp.model.errors import CheckpointError, one_line
from lp.model.heads.medusa import HeadsInfo, MedusaHeads

CONFIG, WEIGHTS = "config.json", "heads.safetensors"
# The folder of heads next to a checkpoint's weights, and what config.json calls them.
FOLDER, KIND = "heads", "medusa"
# Settings of ModelSettings.heads that are no folders.
AUTO, OFF = "auto", "off"


def find_heads(setting: str, checkpoint: str, config: PreTrainedConfig) -> tuple[Path, HeadsInfo] | None:
    """The folder of the heads that a setting names (see ModelSettings), and what they are like; None if there are none.

    checkpoint: its path. Raises CheckpointError if the folder holds none, or those of another model.
    """
    folder = Path(checkpoint) / FOLDER if setting == AUTO else Path(setting).expanduser()
    if setting == OFF or (setting == AUTO and not folder.is_dir()):
        return None
    info, text = read_info(folder), config.get_text_config(decoder=True)
    if (info.hidden_size, info.vocab_size) != (text.hidden_size, text.vocab_size):
        raise CheckpointError(
            f"model.heads={str(folder)!r}: the heads are for a hidden size of {info.hidden_size} and a vocabulary of "
            f"{info.vocab_size}, but the model has a hidden size of {text.hidden_size} and a vocabulary of "
            f"{text.vocab_size}; give heads that were trained for this model, or use model.heads=off"
        )
    return folder, info


def save_heads(heads: MedusaHeads, folder: Path) -> None:
    """Writes heads to a folder, which is made if there is none."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {"kind": KIND, **dataclasses.asdict(heads.info)}
    (folder / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    save_file({name: weight.detach().contiguous() for name, weight in heads.state_dict().items()}, folder / WEIGHTS)


def read_info(folder: Path) -> HeadsInfo:
    """What the heads in a folder are like. Raises CheckpointError if it holds none."""
    path = folder / CONFIG
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"model.heads={str(folder)!r}: {CONFIG} cannot be read ({one_line(error)}); give a folder that "
            "python -m lp.model.heads.convert or demo/train_heads.py has made"
        ) from error
    names = {field.name: field.type for field in dataclasses.fields(HeadsInfo)}
    kind = config.pop("kind", None) if isinstance(config, dict) else None
    if kind != KIND or config.keys() != names.keys():
        raise CheckpointError(f"model.heads={str(folder)!r}: {CONFIG} must have kind={KIND}, {', '.join(names)}")
    for name, value in config.items():
        if type(value) is not (bool if name == "shares_output" else int) or value < (name != "shares_output"):
            raise CheckpointError(f"model.heads={str(folder)!r}: {name}={value!r} in {CONFIG} is no sensible value")
    return HeadsInfo(**config)


def digest_of_heads(folder: Path, info: HeadsInfo) -> str:
    """A text that is the same for the same heads alone. Raises CheckpointError if the weights cannot be read."""
    try:
        with open(folder / WEIGHTS, "rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise CheckpointError(f"model.heads={str(folder)!r}: the heads cannot be read: {one_line(error)}") from error
    return f"{info.num_heads} heads {digest[:16]}"


def load_heads(folder: Path, info: HeadsInfo, dtype: torch.dtype, device: torch.device) -> MedusaHeads:
    """Reads heads. Raises CheckpointError if the weights are not those of `info`."""
    try:
        weights = load_file(folder / WEIGHTS)
        with torch.device("meta"):
            heads = MedusaHeads(info)
        heads.load_state_dict(weights, assign=True)
    except (OSError, SafetensorError, RuntimeError) as error:
        raise CheckpointError(f"model.heads={str(folder)!r}: the heads cannot be read: {one_line(error)}") from error
    return heads.to(device, dtype).eval().requires_grad_(False)
