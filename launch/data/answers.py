"""Collects a model's answers for an index: after every token of its vocabulary, and along texts that it writes.

R rows of a step, K candidates of each answer
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from lp.drafting.answer_index import NewestAnswers
from lp.drafting.ngrams import OFFSET
from lp.engine.engine import NOT_A_NUMBER, Engine
from lp.methods.auto.method import Auto
from lp.request import Sequence as TokenSequence
from lp.runner.runner import StepInput
from lp.sampling.settings import Sampling
from lp.text.stopping import Stopping
from lp.tree import TokenTree, TreeBuilder

# Rows of a step that asks for what follows single tokens, and of a step along a text.
TOKEN_ROWS, TEXT_ROWS = 128, 64
# Most pairs of tokens in an index.
MOST_PAIRS = 1 << 18
# Under this name the requests share what they learn.
OWNER = "index"
GREEDY = Sampling.greedy()


class AnswerCollector:
    """Fills `found` with answers of an engine's model.

    num_candidates: K.
    """

    def __init__(self, engine: Engine, num_candidates: int, found: NewestAnswers | None = None):
        """found: answers of an earlier index, to which more are added."""
        self.engine = engine
        self.num_candidates = num_candidates
        self.found = found or NewestAnswers(MOST_PAIRS)

    def knows(self, token: int) -> bool:
        """Whether there is an answer after this token already."""
        return token + OFFSET in self.found.tokens

    def after_tokens(self, tokens: Sequence[int]) -> Iterator[int]:
        """Asks what follows each of the tokens at the start of a line. Yields how many were answered by each step.

        All tokens of a step are children of the same root, so the model reads the line's start only once.
        """
        start = line_start(self.engine.checkpoint.tokenizer)
        sequence = TokenSequence("index", list(start), len(start), GREEDY)
        runner = self.engine.runner
        runner.open(sequence)
        try:
            for first in range(0, len(tokens), TOKEN_ROWS - 1):
                asked = list(tokens[first : first + TOKEN_ROWS - 1])
                runner.start([StepInput.of(sequence, _fan(start[-1], asked), self.num_candidates)])
                (answers,) = runner.finish()
                assert answers.candidates is not None
                self._add_tokens(asked, answers.candidates[1:])
                yield len(asked)
        finally:
            runner.close(sequence)

    def _add_tokens(self, tokens: list[int], candidates_RK: np.ndarray) -> None:
        keys = [token + OFFSET for token in tokens]  # see lp/drafting/ngrams.py: a context of one token is its digit
        self.found.tokens.update(zip(keys, map(tuple, candidates_RK.tolist()), strict=True))

    def along_text(self, prompt: Sequence[int], max_new_tokens: int) -> None:
        """Continues a prompt greedily, and keeps the model's answers to all rows of all steps, right and wrong.

        Raises ValueError if the prompt is too long or the model answers NaN.
        """
        engine = self.engine
        decode = Auto(rows=TEXT_ROWS, candidates=self.num_candidates, shared_drafts=True, index_drafts=False)
        request = engine.request_builder.build(prompt, decode, GREEDY, Stopping(max_new_tokens), owner=OWNER)
        engine.add_request(request)
        while not engine.is_idle:
            if any(output.finish_reason == "error" for output in engine.step()):
                raise ValueError(NOT_A_NUMBER)
        shared = engine.history.shared(OWNER).answers
        self.found.pairs.update(shared.pairs)
        self.found.tokens.update(shared.tokens)
        self.found.trim()


def line_start(tokenizer: Any) -> list[int]:
    """The tokens of an empty line, after the token with which texts begin if there is one."""
    begin = tokenizer.bos_token_id if tokenizer.bos_token_id is not None else tokenizer.eos_token_id
    found = [] if begin is None else [begin]
    found += tokenizer.encode("\n", add_special_tokens=False)
    return found or [0]


def _fan(root: int, children: Sequence[int]) -> TokenTree:
    """A tree whose nodes are all children of the root."""
    builder = TreeBuilder(root)
    builder.extend(list(children), [0] * len(children), [1] * len(children))
    return builder.build()
