"""Collects what a model answers after every token, and along texts, so that decode=auto has drafts from the first step.

    python launch/index.py model.path=FOLDER                                # after every token
    python launch/index.py model.path=FOLDER prompts=FILE.jsonl chat=true  # and along the answers to these prompts
    python launch/index.py model.path=FOLDER corpus='texts/**/*.txt'       # another file: a corpus of these texts

The index is a file beside the weights, FOLDER/lookahead.index, or the one that output= names. Every command reads the
one beside the weights; index=FILE names another, index=off uses none. It never changes a model's output: it proposes
drafts, and those that are wrong are dropped. It holds tokens of the prompts and of the model's answers to them.

Prompts like those that are to come help most. A second run adds to what is there and asks nothing twice; fresh=true
begins anew. After Ctrl-C, what was collected is kept.
"""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from omegaconf import MISSING
from tqdm import tqdm

from launch.config import engine_settings, process
from launch.config.ending import leave
from launch.config.process import set_threads
from launch.data.answers import MOST_PAIRS, AnswerCollector
from launch.data.corpus import read_texts
from launch.data.prompts import NamedPrompt, PromptSettings, collect, naming
from lp.drafting import corpus as corpus_file
from lp.drafting.answer_index import FILE_NAME, NewestAnswers, read_index, write_index
from lp.engine.builder import EngineSettings
from lp.engine.engine import Engine
from lp.model.attention import AttentionSettings
from lp.model.checkpoint import Checkpoint, ModelSettings
from lp.model.checkpoint_info import read_checkpoint_info
from lp.model.second_model import vocabulary_of
from lp.runner.step_times.measure import StepTimesSource
from lp.text.stopping import Stopping
from parallel.mesh import Mesh, is_rank

log = logging.getLogger("lookahead")

# Most tokens of a corpus: sorting them takes some 50 bytes of memory for each.
MOST_CORPUS_TOKENS = 1 << 28


@dataclass
class IndexSettings(PromptSettings):
    """The settings of the program, in addition to those that name the prompts, which may be left out.

    output: the file to write; None is the one beside the weights. num_tokens: ask after this many tokens of the
    vocabulary, those with the lowest ids, which are the most frequent ones of most tokenizers; None is all.
    max_new_tokens: the most tokens of an answer to a prompt. candidates: the best tokens kept from each answer. fresh:
    begin anew. threads: of the CPU; None takes every core. corpus: make a corpus of these text files instead: a
    folder, a file or a pattern. corpus_tokens: the most tokens of a corpus; what is beyond is left out.
    """

    model: ModelSettings = field(default_factory=lambda: ModelSettings(path=MISSING))
    attention: AttentionSettings = field(default_factory=AttentionSettings)
    output: str | None = None
    num_tokens: int | None = None
    max_new_tokens: int = 128
    candidates: int = 8
    fresh: bool = False
    threads: int | None = None
    corpus: str | None = None
    corpus_tokens: int = 8_000_000


def check(settings: IndexSettings) -> None:
    """Raises ValueError for settings that cannot be used, before anything is loaded."""
    for key in ("candidates", "max_new_tokens", "num_tokens", "threads", "corpus_tokens"):
        value = getattr(settings, key)
        if value is not None and value < 1:
            raise ValueError(f"{key}={value} must be at least 1")
    if is_rank():
        raise ValueError("launch/index.py collects on one rank; start it without torchrun")
    if settings.corpus is not None and has_prompts(settings):
        raise ValueError("got corpus and prompts, which go into different files; give one of them")
    if settings.corpus is not None and settings.corpus_tokens > MOST_CORPUS_TOKENS:
        raise ValueError(f"corpus_tokens={settings.corpus_tokens} must be at most {MOST_CORPUS_TOKENS:,}")


def writable(path: str) -> Path:
    """The file to write. Raises ValueError if its folder is not there or cannot be written."""
    file = Path(path).expanduser().absolute()
    if not file.parent.is_dir() or not os.access(file.parent, os.W_OK):
        raise ValueError(f"the index cannot be written to {file.parent}: name another place with output=FILE")
    return file


def has_prompts(settings: IndexSettings) -> bool:
    return any((settings.prompt, settings.prompt_file, settings.prompts, settings.messages))


def prompts_of(settings: IndexSettings) -> list[NamedPrompt]:
    """The prompts, if any were given. Raises ValueError naming the file and line that cannot be used."""
    return collect(settings) if has_prompts(settings) else []


def encode_all(engine: Engine, named: list[NamedPrompt], max_new_tokens: int) -> list[list[int]]:
    """The prompts' tokens, all checked before the first is continued. Raises ValueError naming the one at fault."""
    found = []
    for prompt in named:
        with naming(prompt.where):
            found.append(engine.request_builder.build(prompt.prompt, stopping=Stopping(max_new_tokens)).prompt)
    return found


def earlier(settings: IndexSettings, path: Path, checkpoint: Checkpoint) -> NewestAnswers | None:
    """The answers of an earlier run. Raises ValueError if the file holds something else."""
    if settings.fresh or not path.is_file():
        return None
    try:
        return read_index(path, checkpoint.vocab_size).newest(MOST_PAIRS)
    except ValueError as error:
        raise ValueError(f"{error}; fresh=true writes over it") from None


def fill(collector: AnswerCollector, tokens: Sequence[int], prompts: list[list[int]], max_new_tokens: int) -> None:
    """Asks after the tokens and along the prompts, with a bar for each."""
    log.info("asking what follows %s tokens and along %d text(s)", f"{len(tokens):,}", len(prompts))
    with tqdm(total=len(tokens), unit="token", desc="after every token", disable=None) as bar:
        for number in collector.after_tokens(tokens):
            bar.update(number)
    for prompt in tqdm(prompts, unit="text", desc="along texts", disable=None):
        collector.along_text(prompt, max_new_tokens)


def make_corpus(settings: IndexSettings, pattern: str) -> int:
    """Writes a corpus of text files, for which only the tokenizer is read. Raises ValueError, OSError."""
    begin, known = time.monotonic(), read_checkpoint_info(settings.model.path)
    path = writable(settings.output or str(Path(known.path) / corpus_file.FILE_NAME))
    corpus = read_texts(pattern, settings.corpus_tokens, known)
    corpus_file.write_corpus(path, corpus, corpus_file.vocabulary_digest(vocabulary_of(known)))
    size = path.stat().st_size / 1e6
    tokens, seconds = f"{len(corpus.places):,}", time.monotonic() - begin
    log.info("%s: %s tokens, %.1f MB, in %.0f s; use it with corpus=%s", path, tokens, size, seconds, path)
    return 0


def run(settings: IndexSettings) -> int:
    """Exit code 0, or 130 if Ctrl-C ended it early. Raises ValueError, OSError."""
    check(settings)
    if settings.corpus is not None:
        return make_corpus(settings, settings.corpus)
    named = prompts_of(settings)
    set_threads(Mesh({}), settings.threads)
    loaded = EngineSettings(settings.model, attention=settings.attention, step_times=StepTimesSource.off, index="off")
    engine = Engine.assemble(loaded)
    checkpoint = engine.checkpoint
    path = writable(settings.output or str(Path(checkpoint.path) / FILE_NAME))
    prompts = encode_all(engine, named, settings.max_new_tokens)
    collector = AnswerCollector(engine, settings.candidates, earlier(settings, path, checkpoint))
    most = min(settings.num_tokens or checkpoint.vocab_size, checkpoint.vocab_size)
    missing = [token for token in range(most) if not collector.knows(token)]
    begin, is_interrupted = time.monotonic(), False
    try:
        fill(collector, missing, prompts, settings.max_new_tokens)
    except KeyboardInterrupt:
        is_interrupted = True
    found = collector.found
    write_index(path, checkpoint.name, checkpoint.vocab_size, found.pairs, found.tokens)
    log.info(
        "%s: answers after %s pairs of tokens and %s tokens, %.1f MB, in %.0f s",
        path,
        f"{len(found.pairs):,}",
        f"{len(found.tokens):,}",
        path.stat().st_size / 1e6,
        time.monotonic() - begin,
    )
    return 128 + signal.SIGINT if is_interrupted else 0


def main() -> int:
    engine_settings.register("index", IndexSettings)
    return process.main("index", IndexSettings, run, usage=__doc__ or "")


if __name__ == "__main__":
    leave(main())
