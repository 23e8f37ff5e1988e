"""Measures how long decode=auto plans a tree and learns from its answers: the work of a step on the host.

The text and the answers are made up: each token's likeliest followers are fixed, and which of them is right depends on
the position, so that trees become large and some drafts are right.

    R rows of a tree, K candidates of each row
"""

from __future__ import annotations

import dataclasses
import statistics
import time

import numpy as np

from lp.decoder import Decoder
from lp.drafting.history import DraftHistory
from lp.drafting.settings import DraftSettings
from lp.methods.auto.decoder import AutoDecoder
from lp.methods.autoregressive import AutoregressiveDecoder
from lp.tree import Answers, TokenTree

# The numbers of rows of the trees that are timed.
FEW, MANY = 8, 64
# Steps of each size that are timed, after some in which the sources learn.
STEPS, FIRST_STEPS = 24, 12
# Number of different tokens of the text.
NUM_TOKENS = 199
PROMPT = list(range(32))


def measure_host(settings: DraftSettings) -> tuple[float, float]:
    """Seconds that the host needs for a step, beyond those of autoregressive decoding, and for each row of its tree."""
    plain_s, _ = _time(AutoregressiveDecoder(), settings.candidates)
    sized = [dataclasses.replace(settings, rows=rows) for rows in (FEW, MANY)]
    (few_s, few), (many_s, many) = (
        _time(AutoDecoder(one, PROMPT, 0, 0.0, DraftHistory()), settings.candidates) for one in sized
    )
    row_s = max(0.0, many_s - few_s) / max(1.0, many - few)
    return max(0.0, few_s - row_s * few - plain_s), row_s


def _time(decoder: Decoder, num_candidates: int) -> tuple[float, float]:
    """The median seconds of a step's planning and learning, and the median number of its rows."""
    followers = np.random.default_rng(0).integers(NUM_TOKENS, size=(NUM_TOKENS, num_candidates))
    tokens, seconds, rows = list(PROMPT), [], []
    for _ in range(FIRST_STEPS + STEPS):
        begin = time.perf_counter()
        tree = decoder.plan(tokens, room=64, wanted=64)
        planned = time.perf_counter()
        answers = _answers(followers, tree, len(tokens))
        answered = time.perf_counter()
        accepted, count_drafts = decoder.commit(tokens, answers)
        count_drafts()
        seconds.append(time.perf_counter() - answered + planned - begin)
        rows.append(len(tree))
        tokens += accepted.tokens
    return statistics.median(seconds[FIRST_STEPS:]), statistics.median(rows[FIRST_STEPS:])


def _answers(followers: np.ndarray, tree: TokenTree, position: int) -> Answers:
    """The answers for a tree whose root's answer has this position."""
    first = np.array([(7 * (position + depth) % 11) % 3 for depth in tree.depths.tolist()])
    ranks = (np.arange(followers.shape[1]) + first[:, None]) % followers.shape[1]
    candidates_RK = followers[tree.tokens[:, None], ranks]
    return Answers(candidates_RK[:, 0].copy(), candidates_RK)
