"""Reads text files for a corpus: finds them, cuts them into tokens, and stops at a bound."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from glob import glob
from pathlib import Path

import numpy as np
from tqdm import tqdm

from lp.drafting.corpus import Corpus, build_corpus
from lp.model.checkpoint_info import CheckpointInfo

log = logging.getLogger("lookahead")


def files_of(pattern: str) -> list[Path]:
    """The files that a setting names, sorted by name: those of a folder and its folders, or those of a glob.

    Names that begin with a dot are left out, unless the setting gives them. Raises ValueError if there is none.
    """
    path = Path(pattern).expanduser()
    names = glob("**", root_dir=path, recursive=True) if path.is_dir() else glob(str(path), recursive=True)
    found = sorted(file for name in names if (file := path / name if path.is_dir() else Path(name)).is_file())
    if not found:
        raise ValueError(
            f"corpus={pattern} names no file; give a folder, a file, or a pattern such as 'texts/**/*.txt'"
        )
    return found


class TextFiles:
    """Cuts files into tokens, one after the other, until there are enough.

    num_read, num_cut, num_refused: files that were used, that were left out or cut for the bound, and that are no text.
    """

    def __init__(self, files: list[Path], most_tokens: int):
        self.files, self.most_tokens = files, most_tokens
        self.num_read = self.num_cut = self.num_refused = 0

    def tokens(self, known: CheckpointInfo) -> Iterator[np.ndarray]:
        """The token ids of each file, [number of tokens] int32. Raises OSError."""
        left = self.most_tokens
        with tqdm(total=len(self.files), unit="file", desc="reading texts", disable=None) as bar:
            for file in self.files:
                if not left:
                    self.num_cut = len(self.files) - bar.n
                    return
                ids = self._read(file, known)
                self.num_cut += len(ids) > left
                left -= len(kept := ids[:left])
                yield kept
                bar.update()

    def _read(self, file: Path, known: CheckpointInfo) -> np.ndarray:
        try:
            text = file.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            self.num_refused += 1
            return np.empty(0, np.int32)
        ids = np.array(known.tokenizer.encode(text, add_special_tokens=False), np.int32)
        self.num_read += 1
        return ids[ids < known.vocab_size]


def read_texts(pattern: str, most_tokens: int, known: CheckpointInfo) -> Corpus:
    """The corpus of the files that a pattern names. Raises ValueError, OSError.

    most_tokens: of all files together; what is beyond is left out, with a warning.
    """
    texts = TextFiles(files_of(pattern), most_tokens)
    parts = list(texts.tokens(known))
    if not any(map(len, parts)):
        raise ValueError(f"corpus={pattern} names {len(texts.files)} file(s), none of which holds text in UTF-8")
    if texts.num_refused:
        log.warning("%d file(s) hold no text in UTF-8 and were left out", texts.num_refused)
    if texts.num_cut:
        log.warning(
            "corpus_tokens=%d is reached: %d of %d files were cut or left out; a larger number takes more of them",
            most_tokens, texts.num_cut, len(texts.files),
        )  # fmt: skip
    log.info("sorting %s tokens of %d file(s)", f"{sum(map(len, parts)):,}", texts.num_read)
    return build_corpus(known.name, known.vocab_size, parts)
