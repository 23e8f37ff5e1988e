"""The demo model's training text, Python sources that are on the machine anyway, and the tokenizer learned from them.

Knows nothing of the model or of training.
"""

from __future__ import annotations

import importlib.util
import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

BOS, EOS = "<s>", "</s>"
# Packages of the standard library that the model never sees in training; neither does it see their tests.
HELD_OUT = ("json", "asyncio", "email", "unittest")
# Packages that are installed with torch; both are under BSD-3-Clause.
PACKAGES = ("networkx", "sympy")
# In bytes. Longer files are tables, not programs.
LONGEST_FILE = 300_000


def standard_library() -> tuple[list[Path], list[Path]]:
    """Returns the running interpreter's own sources, as (training, held-out) files."""
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
    """Returns the sources of an installed package without its tests; an empty list if it is not installed."""
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        return []
    root = Path(spec.origin).parent
    return [file for file in sorted(root.rglob("*.py")) if "tests" not in file.parts]


def read(files: Iterable[Path]) -> Iterator[str]:
    """Yields the text of each file that is a UTF-8 program of a sensible length."""
    for file in files:
        data = file.read_bytes()
        if not 40 <= len(data) <= LONGEST_FILE:
            continue
        try:
            yield data.decode("utf-8")
        except UnicodeDecodeError:
            continue


def train_tokenizer(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    """Trains a byte-level BPE: any bytes can be encoded, and every prompt starts with BOS."""
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
