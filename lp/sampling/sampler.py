"""Turns the logits of a tree's rows into answers: processors first, then choosers.

Where the settings truncate the distribution, a `Shortlist` comes first; `FullVocabulary` settles the rows that remain.
Greedy decoding takes the same path, with temperature 0. Knows nothing of windows, drafts or ranks.

    R rows of the tree, V vocabulary, L tokens of a path, K best tokens, T alternatives with log-probabilities
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import NamedTuple, cast

import numpy as np
import torch
from torch import FloatTensor, LongTensor, Tensor

from lp.hardware import Download, upload
from lp.sampling.full_vocabulary import Chooser, FullVocabulary, Rows
from lp.sampling.fused import NUM_BEST, TRUNCATED, WHOLE, FusedChooser, can_fuse
from lp.sampling.noise import NoiseTable
from lp.sampling.penalties import Penalties, can_penalise
from lp.sampling.processors import RepetitionPenalty, biases, context_processors, warpers
from lp.sampling.settings import Sampling
from lp.sampling.shortlist import Shortlist
from lp.sampling.top_k import best_tokens
from lp.tree import PREFIX, TokenTree
from lp.verification import Answers

log = logging.getLogger("lookahead")

# Lengths of the shortlists: the second is used for rows that the first did not settle.
SHORTLISTS = (NUM_BEST, 4096)


class Wish(NamedTuple):
    """What a device needs to choose a tree's tokens itself, behind the forward.

    kind: of lp.sampling.fused.KINDS. choices: int64 [R, 4], how each row's token is chosen. change: changes the logits
    [R, V] in place before that; None if nothing does. is_settled: whether the kind settles every row.
    """

    kind: str
    choices: np.ndarray
    change: Callable[[Tensor], None] | None
    is_settled: bool


class Sampler:
    """Answers the rows of one sequence's trees."""

    def __init__(
        self,
        sampling: Sampling,
        prompt_length: int,
        eos: Sequence[int],
        vocab_size: int,
        device: str,
    ):
        """sampling: complete settings, in which only `logprobs` may be None."""
        assert sampling.seed is not None and sampling.temperature is not None
        self.sampling = sampling
        self._device = device
        self.vocab_size = vocab_size
        self.logprobs = sampling.logprobs
        self.bias = biases(sampling)
        penalty = sampling.repetition_penalty
        self.repetition = RepetitionPenalty(penalty) if penalty is not None and penalty != 1.0 else None
        self.context = context_processors(sampling, prompt_length, eos, device)
        self._penalties = self._make_penalties(prompt_length, eos)
        self.warpers = warpers(sampling)
        self.noise = NoiseTable(sampling.seed, vocab_size, device) if sampling.temperature > 0 else None
        # By the number of tokens that they choose for each row.
        self._choosers: dict[int, list[Chooser]] = {}

    def answers(self, logits_RV: Tensor, tree: TokenTree, tokens: Sequence[int], num_candidates: int = 0) -> Answers:
        """The answers for all rows of a tree; see `launch`."""
        return self.launch(logits_RV, tree, tokens, num_candidates)()

    def wish(self, tree: TokenTree, tokens: Sequence[int], num_candidates: int = 0) -> Wish | None:
        """What a device needs to choose the rows' tokens itself; None if it cannot, and `launch` must."""
        chooser = self.choosers(num_candidates)[0]
        in_context = self.repetition or self.context or self.bias
        if not isinstance(chooser, FusedChooser) or self.logprobs is not None or num_candidates > self.vocab_size:
            return None
        if in_context and not self._penalties:
            return None
        change = None if self._penalties is None else partial(self._penalties, tree=tree, tokens=tokens)
        if self.noise:
            self.noise.forget(before=len(tokens))
        choices = chooser.choices(*_places(tree, tokens))
        return Wish(chooser.kind, choices, change, chooser.kind == WHOLE)

    def granted(
        self,
        wait_for: Callable[[], np.ndarray],
        scores_RV: Tensor,
        tree: TokenTree,
        tokens: Sequence[int],
        num_candidates: int = 0,
    ) -> Callable[[], Answers]:
        """Returns what waits for the answers of a wish that a device has been given.

        wait_for: returns what it has chosen, int64 [R, C], as lp.sampling.fused has it. scores_RV: the logits as
        `change` left them, which must stay if the wish is not settled.
        """
        rows, columns = Rows(scores_RV, *_places(tree, tokens)), slice(1 + max(1, num_candidates))
        settled = self._settled(
            lambda: wait_for()[:, columns], scores_RV, rows, num_candidates, self.choosers(num_candidates)[1:]
        )
        return lambda: Answers.unpack(settled(), num_candidates)

    @torch.inference_mode()
    def launch(
        self, logits_RV: Tensor, tree: TokenTree, tokens: Sequence[int], num_candidates: int = 0
    ) -> Callable[[], Answers]:
        """Gives the device its work for the answers to all rows of a tree. Returns what waits for them.

        logits_RV: float32 logits of the rows. tokens: the sequence, whose last token is the tree's root.
        num_candidates: K, the number of best tokens to return for each row; 0 is the target alone.
        """
        if self.noise:
            self.noise.forget(before=len(tokens))
        rows = Rows(self._in_context(logits_RV, tree, tokens), *_places(tree, tokens))
        packed = self.packed(logits_RV, rows, num_candidates, self.choosers(num_candidates))
        return lambda: Answers.unpack(packed(), num_candidates)

    def chooses_alike(self, num_candidates: int) -> tuple[int, ...] | None:
        """What is equal for samplers that answer the same logits with the same tokens, those of greedy decoding without
        processors; None for all others.
        """
        in_context = self.bias or self.repetition or self.context
        return None if self.noise or in_context or self.logprobs is not None else (self.vocab_size, num_candidates)

    def choosers(self, num_candidates: int) -> list[Chooser]:
        """The shortlists, shortest first, then the full vocabulary. Each gets the rows that the last left unsettled."""
        num_tokens = min(max(1, num_candidates), self.vocab_size)
        if num_tokens not in self._choosers:
            is_fused = can_fuse(self._device, num_tokens)
            short = shortlists(self.sampling, self.vocab_size, num_tokens, is_fused) if self.noise else []
            self._choosers[num_tokens] = [*short, self._full(num_tokens, is_fused)]
        return self._choosers[num_tokens]

    def _full(self, num_tokens: int, is_fused: bool) -> Chooser:
        if not is_fused or truncates(self.sampling):
            return FullVocabulary(self.warpers, self.noise, num_tokens)
        return FusedChooser(WHOLE, self.sampling, num_tokens)

    def _make_penalties(self, prompt_length: int, eos: Sequence[int]) -> Penalties | None:
        """The kernel for the processors that look at a path, if there are any and a kernel can take their place."""
        if not can_fuse(self._device) or not (self.bias or self.repetition or self.context):
            return None
        if not can_penalise(self.sampling):
            _say_once("no_repeat_ngram has no kernel: penalties take tens of small ones in each step of such a request")
            return None
        return Penalties(self.sampling, prompt_length, eos, self.vocab_size)

    def scores(self, logits_RV: Tensor, tree: TokenTree, tokens: Sequence[int]) -> Tensor:
        """[R, V] scores after all processors. Tokens are drawn from each row's softmax."""
        return self.warpers(_no_context(logits_RV), cast(FloatTensor, self._in_context(logits_RV, tree, tokens)))

    def packed(
        self, logits_RV: Tensor, rows: Rows, num_candidates: int, choosers: Sequence[Chooser]
    ) -> Callable[[], np.ndarray]:
        """Waits for the answers in the form of `Answers.pack`, in one transfer for each chooser that is needed."""
        tokens_RK, is_settled_R = choosers[0](rows)
        # A vocabulary of fewer than K tokens leaves columns to be filled.
        missing = tokens_RK[:, -1:].expand(-1, max(0, num_candidates - tokens_RK.shape[1]))
        columns = [is_settled_R[:, None], tokens_RK, missing, *self._logprobs(logits_RV, tokens_RK[:, :1])]
        download = Download(torch.cat(columns, dim=1).to(torch.int32))
        return self._settled(download.wait, logits_RV, rows, num_candidates, choosers[1:])

    def _settled(
        self,
        wait_for: Callable[[], np.ndarray],
        logits_RV: Tensor,
        rows: Rows,
        num_candidates: int,
        choosers: Sequence[Chooser],
    ) -> Callable[[], np.ndarray]:
        """Waits for packed answers behind a column that is 0 for unsettled rows, which the choosers then settle."""

        @torch.inference_mode()
        def wait() -> np.ndarray:
            packed = wait_for()
            answers = packed[:, 1:].astype(np.int32)
            unsettled = np.flatnonzero(packed[:, 0] == 0)
            if len(unsettled):
                some = torch.from_numpy(unsettled)
                rest = self.packed(logits_RV[some], rows.take(unsettled), num_candidates, choosers)
                answers[unsettled] = rest()
            return answers

        return wait

    def _logprobs(self, logits_RV: Tensor, targets_R1: Tensor) -> list[Tensor]:
        """Columns of packed answers: the target's log-probability, the T likeliest tokens, their log-probabilities."""
        if self.logprobs is None:
            return []
        constants_R1 = logits_RV.logsumexp(dim=1, keepdim=True)
        best = best_tokens(logits_RV, max(1, self.logprobs))
        of_targets = logits_RV.gather(1, targets_R1.clamp(min=0)) - constants_R1
        of_best = best.values[:, : self.logprobs] - constants_R1
        return [_bits(of_targets), best.tokens[:, : self.logprobs], _bits(of_best)]

    def _in_context(self, logits_RV: Tensor, tree: TokenTree, tokens: Sequence[int]) -> Tensor:
        """Applies the biases and the processors that look at each row's own path; rows of one depth share a call."""
        if self._penalties:
            scores_RV = logits_RV.clone()
            self._penalties(scores_RV, tree, tokens)
            return scores_RV
        scores_RV = self.bias(_no_context(logits_RV), cast(FloatTensor, logits_RV))
        if not self.repetition and not self.context:
            return scores_RV
        order = np.argsort(tree.depths, kind="stable")
        on_device = upload(np.column_stack([order, paths(tree, tokens)]), scores_RV.device)
        order_R, paths_RL = on_device[:, 0], on_device[:, 1:]
        scores_RV = scores_RV.clone()
        if self.repetition:  # how often a token occurs does not matter, so padded paths will do
            self.repetition(paths_RL, scores_RV)
        if self.context:
            depths, starts = np.unique(tree.depths[order], return_index=True)
            for depth, start, end in zip(depths.tolist(), starts, [*starts[1:], len(tree)], strict=True):
                rows = order_R[start:end]
                own = cast(LongTensor, paths_RL[rows, : len(tokens) + depth])
                scores_RV[rows] = self.context(own, cast(FloatTensor, scores_RV[rows]))
        return scores_RV


def paths(tree: TokenTree, tokens: Sequence[int]) -> np.ndarray:
    """[R, L] int64: the sequence followed by each row's path. Shorter paths are padded with their last token."""
    filled = np.empty((len(tree), len(tokens) + int(tree.depths.max())), dtype=np.int64)
    filled[0, : len(tokens)] = tokens
    rows = zip(tree.tokens.tolist(), tree.parents.tolist(), tree.depths.tolist(), strict=True)
    for row, (token, parent, depth) in enumerate(rows):
        if parent != PREFIX:
            filled[row] = filled[parent]
        filled[row, len(tokens) - 1 + depth :] = token
    return filled


def truncates(sampling: Sampling) -> bool:
    """Whether the settings drop tokens before one is drawn."""
    return bool(sampling.temperature and (sampling.top_k or sampling.top_p != 1 or sampling.min_p))


def shortlists(sampling: Sampling, vocab_size: int, num_tokens: int, is_fused: bool = False) -> list[Chooser]:
    """The shortlists for these settings, shortest first; none where the full vocabulary takes no longer.

    is_fused: whether kernels of a GPU may stand for the first.
    """
    seed, temperature, top_k = sampling.seed, sampling.temperature, sampling.top_k
    top_p, min_p = sampling.top_p, sampling.min_p
    assert seed is not None and temperature and top_k is not None and top_p is not None and min_p is not None
    if not truncates(sampling):
        return []
    largest = vocab_size // (2 if top_p < 1 else 100)  # top-p sorts the vocabulary, so even a long list pays
    sizes = [size for size in SHORTLISTS if num_tokens <= size <= largest]
    found: list[Chooser] = [Shortlist(size, seed, temperature, top_k, top_p, min_p, num_tokens) for size in sizes]
    if is_fused and sizes[:1] == [NUM_BEST]:
        found[0] = FusedChooser(TRUNCATED, sampling, num_tokens)
    return found


def _places(tree: TokenTree, tokens: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """Positions of the tokens to choose, int64 [R], and which rows are greedy, bool [R]."""
    greedy = np.zeros(len(tree), dtype=bool) if tree.greedy is None else tree.greedy
    return tree.depths + len(tokens), greedy


@cache
def _say_once(text: str) -> None:
    log.info(text)


def _no_context(scores_RV: Tensor) -> LongTensor:
    """[R, 0] paths, for processors that look at the scores alone."""
    return cast(LongTensor, torch.empty(len(scores_RV), 0, dtype=torch.int64, device=scores_RV.device))


def _bits(values: Tensor) -> Tensor:
    """The int32 values that have the bits of these floats."""
    return values.float().contiguous().view(torch.int32)
