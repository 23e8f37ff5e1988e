"""The demo model's text: Python sources that are on the machine anyway, and the tokenizer learned from them.

Knows nothing of the model or of training.
"""

from __future__ import annotations

import importlib.util
import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

BOS, EOS = "<s>", "</s>"
HELD_OUT = ("json", "asyncio", "email", "unittest")
"""Standard-library packages, and their tests, that the model never sees in training."""
PACKAGES = ("networkx", "sympy")
"""Installed with torch; both BSD-3-Clause."""
LONGEST_FILE = 300_000
"""Bytes. Longer files are tables, not programs."""


def standard_library() -> tuple[list[Path], list[Path]]:
    """The running interpreter's own sources, as (training, held-out) files."""
    root = Path(sysconfig.get_paths()["stdlib"])
    training, held_out = [], []
    for file in sorted(root.rglob("*.py")):
        parts = file.relative_to(root).with_suffix("").parts
        if "site-packages" in parts or "bad_coding" in parts[-1]:
            continue
        is_held_out = any(part.removeprefix("test_") in HELD_OUT for part in parts)
        (held_out if is_held_out else training).append(file)
    return training, held_out


def package_sources(name: str) -> list[Path]:
    """Sources of an installed package without its tests; none if it is not installed."""
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        return []
    root = Path(spec.origin).parent
    return [file for file in sorted(root.rglob("*.py")) if "tests" not in file.parts]


def read(files: Iterable[Path]) -> Iterator[str]:
    """Text of the files that are UTF-8 programs of a sensible length."""
    for file in files:
        data = file.read_bytes()
        if not 40 <= len(data) <= LONGEST_FILE:
            continue
        try:
            yield data.decode("utf-8")
        except UnicodeDecodeError:
            continue


def train_tokenizer(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    """A byte-level BPE: any bytes can be encoded, and every prompt starts with BOS."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[BOS, EOS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", pair=f"{BOS} $A $B", special_tokens=[(BOS, tokenizer.token_to_id(BOS))]
    )
    return tokenizer
