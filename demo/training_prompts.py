"""Prompts for training: token ids of equal length, from a JSONL file or from the demo model's own kind of text."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path

import torch
from corpus import PACKAGES, package_sources, read, standard_library
from torch import Tensor
from transformers import PreTrainedTokenizerBase

# Crops taken from one Python file.
CROPS_A_FILE = 4


def read_crops(
    tokenizer: PreTrainedTokenizerBase, path: Path | None, length: int, number: int, num_held_out: int
) -> tuple[Tensor, Tensor]:
    """Prompts to train on, [number, length], and others that nothing is trained on, [num_held_out, length].

    path: JSONL file with a text under the key `prompt`, whose last usable lines are held out; None takes Python
    sources. Raises ValueError if there are too few texts of so many tokens.
    """
    if path is None:
        return python_crops(tokenizer, length, number, num_held_out)
    encoded = (tokenizer.encode(text)[:length] for text in read_jsonl(path))
    usable = [tokens for tokens in encoded if len(tokens) == length]
    if len(usable) < number + num_held_out:
        raise ValueError(
            f"{path} has {len(usable)} prompts of at least {length} tokens, fewer than the {number} to train on and "
            f"the {num_held_out} held out: use fewer --texts, a smaller --prompt-tokens or more prompts"
        )
    crops = torch.tensor(usable)
    return crops[:number], crops[len(crops) - num_held_out :]


def read_jsonl(path: Path) -> Iterator[str]:
    """The texts of a JSONL file. Raises ValueError, which names the line, OSError."""
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            text = json.loads(line)["prompt"]
        except (ValueError, TypeError, KeyError):
            raise ValueError(f"{path}, line {number}: not a JSON object with a text under `prompt`") from None
        if not isinstance(text, str):
            raise ValueError(f"{path}, line {number}: `prompt` is {type(text).__name__}, not a text")
        yield text


def python_crops(
    tokenizer: PreTrainedTokenizerBase, length: int, number: int, num_held_out: int
) -> tuple[Tensor, Tensor]:
    """Crops of the sources that the demo model was trained on, and of those that were held out there too."""
    training, held_out = standard_library()
    training = [*training, *(file for name in PACKAGES for file in package_sources(name))]
    return tuple(
        _crops(tokenizer, files, length, wanted) for files, wanted in ((training, number), (held_out, num_held_out))
    )


def _crops(tokenizer: PreTrainedTokenizerBase, files: list[Path], length: int, number: int) -> Tensor:
    """Raises ValueError if the files are too few."""
    draw = random.Random(0)
    found: list[list[int]] = []
    for text in read(draw.sample(files, len(files))):
        tokens = tokenizer.encode(text)
        most = len(tokens) - length
        found += (
            [tokens[start : start + length] for start in draw.choices(range(most), k=CROPS_A_FILE)] if most > 0 else []
        )
        if len(found) >= number:
            return torch.tensor(found[:number])
    raise ValueError(f"the Python sources here give {len(found)} prompts of {length} tokens, fewer than {number}")
