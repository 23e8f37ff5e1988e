"""What is computed of a prompt's tokens before the first token is generated: log-probabilities, or hidden states.

A chunk is a tree without branches whose rows report what the sequence's next token is worth, whatever the target: so
every runner computes it like any other tree. Knows nothing of runners.
"""

from __future__ import annotations

import numpy as np

from lp.request import TokenLogprob
from lp.tree import NOT_A_TOKEN, Answers, TokenTree, chain

# The most logits and the most numbers of hidden states of a chunk, for all of its rows together; they take four bytes
# each.
MOST_LOGITS, MOST_HIDDEN = 1 << 23, 1 << 18


class PromptScores:
    """What is known of the tokens of one prompt.

    found: log-probabilities of the second token and those behind it, as far as they have been computed and are asked
    for; nothing comes before the first token. hidden: [D] the sum of the hidden states of the tokens before these; 0
    if they are not asked for. num_scored: the number of first tokens whose successors are scored. most_rows: of a
    chunk.
    """

    def __init__(self, prompt: list[int], vocab_size: int, num_hidden: int = 0):
        """num_hidden: D; 0 asks for log-probabilities."""
        self.found: list[TokenLogprob] = []
        self.hidden: np.ndarray | float = 0.0
        self.num_scored = 0
        self.most_rows = max(1, min(MOST_LOGITS // vocab_size, MOST_HIDDEN // max(1, num_hidden)))
        self._prompt = prompt

    @property
    def num_uncomputed(self) -> int:
        """The number of tokens that have not been scored yet."""
        return len(self._prompt) - 1 - self.num_scored

    def chunk(self, end: int) -> TokenTree:
        """The rows that score the successors of the tokens from `num_scored` up to `end`."""
        begin = self.num_scored
        scored = np.array(self._prompt[begin + 1 : end + 1], np.int64)
        return chain(self._prompt[begin:end], scored)

    def commit(self, answers: Answers) -> list[int]:
        """Returns the tokens that the answers to a chunk have scored. Raises FloatingPointError if a score is not a
        number.
        """
        if (answers.targets == NOT_A_TOKEN).any():
            raise FloatingPointError
        begin = self.num_scored
        tokens = self._prompt[begin + 1 : begin + 1 + len(answers.targets)]
        self.num_scored += len(tokens)
        if answers.hidden is not None:
            self.hidden = self.hidden + answers.hidden.sum(axis=0, dtype=np.float64)
        else:
            self.found += token_logprobs(answers, tokens, range(len(tokens)))
        return tokens

    def forget(self) -> None:
        """Begins anew, as what has been computed of the prompt is lost."""
        self.found.clear()
        self.num_scored, self.hidden = 0, 0.0


def token_logprobs(answers: Answers, tokens: list[int], rows: range | list[int]) -> list[TokenLogprob]:
    """The log-probabilities of tokens. rows: for each of them, the row that reports it."""
    assert answers.logprobs is not None and answers.top_tokens is not None and answers.top_logprobs is not None
    found = []
    for token, row in zip(tokens, rows, strict=True):
        top = zip(answers.top_tokens[row].tolist(), answers.top_logprobs[row].tolist(), strict=True)
        found.append(TokenLogprob(token, float(answers.logprobs[row]), list(top)))
    return found
