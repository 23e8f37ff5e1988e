"""What one sequence's settings ask of those who answer the rows of its trees.

Greedy decoding takes the same path as sampling, with temperature 0. Knows nothing of windows, drafts or ranks.

    R rows of the tree, V vocabulary, K best tokens
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from lp.grammar.state import GrammarState, Masks, apply_masks
from lp.platform.library import Library, library
from lp.sampling.batch import Asked, launch_all
from lp.sampling.choosers import WHOLE, FullVocabulary, FusedChooser, can_fuse, choosers_for, warp
from lp.sampling.contrast import Contrast
from lp.sampling.contrast import apply as apply_contrast
from lp.sampling.couplings import CoupledChooser
from lp.sampling.noise import mixed_seed, row_keys
from lp.sampling.penalties import Penalties, change, touches
from lp.sampling.rows import LAYOUT, Chooser, Rows, layout_of
from lp.sampling.settings import Sampling
from lp.tree import Answers, Coupled, TokenTree


class Sampler:
    """One sequence's settings, and what is known of it for penalties. is_sampled: whether tokens are drawn."""

    def __init__(
        self,
        sampling: Sampling,
        prompt_length: int,
        eos: Sequence[int],
        vocab_size: int,
        device: str,
        grammar: GrammarState | None = None,
        contrast: Contrast | None = None,
    ):
        """sampling: complete settings, in which only those of log-probabilities may be None. grammar: of the sequence;
        nobody else may move it. contrast: what its scores are made of; None if they are the logits.
        """
        assert sampling.seed is not None and sampling.temperature is not None
        self.sampling = sampling
        self._seed, self._mixed_seed = sampling.seed, mixed_seed(sampling.seed)
        self._device = device
        self.vocab_size = vocab_size
        self.grammar, self.contrast = grammar, contrast
        self.penalties = Penalties(sampling, prompt_length, eos, vocab_size) if touches(sampling, eos) else None
        allowed = sampling.allowed_token_ids
        self._allowed = None if allowed is None else Masks.of_tokens(allowed, vocab_size)
        self.is_sampled = sampling.temperature > 0
        # By the number of tokens that they choose for each row, with what all rows' choices have in common.
        self._choosers: dict[int, tuple[tuple[Chooser, ...], np.ndarray]] = {}
        self._dropped = np.array([1.0 - (1.0 if sampling.top_p is None else sampling.top_p)], np.float32)
        # Whether a step asks the same whatever its tokens are. That is kept by the numbers of rows and of candidates,
        # as a part of what is asked for the most rows so far.
        self._is_masked = grammar is not None or allowed is not None
        self._are_alike = not (self.is_sampled or self.penalties or self._is_masked)
        self._wants_best_alone = self._are_alike and contrast is None and sampling.logprobs is None
        self._are_drawn = self.is_sampled and not (self.penalties or self._is_masked)
        self._kept: dict[tuple[int, int], Asked] = {}
        # By the same numbers, what drawn rows are asked by in turn: a step's is written over by the next step but one.
        self._in_turn: dict[tuple[int, int], list[Asked]] = {}
        self._largest: dict[int, Asked] = {}

    def ask(self, tree: TokenTree, tokens: Sequence[int], num_candidates: int = 0) -> Asked:
        """What answers all rows of a tree. Each step of a sequence asks once.

        tokens: the sequence, whose last token is the tree's root. num_candidates: K, the number of best tokens to
        return for each row; 0 is the target alone.
        """
        if tree.scored is not None:
            return self._ask_scores(tree, tree.scored, len(tokens))
        if tree.coupled is not None:
            return self._ask_coupled(tree.coupled, replace(tree, coupled=None), tokens, num_candidates)
        key = tree.num_rows, num_candidates
        if self._are_alike:
            return self._kept.get(key) or self._kept.setdefault(key, self._part(*key))
        if self._are_drawn and tree.greedy is None and (native := library()) is not None:
            return self._drawn(native, tree, len(tokens), num_candidates)
        asked = self._asked(tree.depths + len(tokens), *key)
        if self.is_sampled:
            fields = asked.choices.view(LAYOUT)[:, 0]
            fields["key"] = row_keys(self._seed, asked.positions.tolist())
            fields["is_drawn"] = True if tree.greedy is None else ~tree.greedy
        touch = partial(self.penalties.touch, tree, tokens) if self.penalties else None
        mask = partial(self._masks, tree, tokens) if self._is_masked else None
        return asked._replace(touch=touch, mask=mask)

    def wants_best_alone(self, tree: TokenTree) -> bool:
        """Whether the targets of a tree's rows are their likeliest tokens, and no other logits are reported."""
        return self._wants_best_alone and tree.scored is None and tree.coupled is None

    def _ask_coupled(self, coupled: Coupled, tree: TokenTree, tokens: Sequence[int], num_candidates: int) -> Asked:
        """What answers rows whose targets depend on drafts. tree: without that."""
        asked, num_tokens = self.ask(tree, tokens, num_candidates), min(max(1, num_candidates), self.vocab_size)
        return asked._replace(choosers=(CoupledChooser(coupled, self._seed, num_tokens, not self.is_sampled),))

    def _drawn(self, native: Library, tree: TokenTree, length: int, num_candidates: int) -> Asked:
        """What `ask` returns where all rows are drawn without penalties."""
        key = tree.num_rows, num_candidates
        both = self._in_turn.get(key) or self._in_turn.setdefault(key, [self._drawn_part(*key) for _ in range(2)])
        both.reverse()
        asked = both[0]
        native.step_draw(tree.addresses[2], key[0], length, self._mixed_seed, asked.choices, asked.positions)
        return asked

    def _drawn_part(self, num_rows: int, num_candidates: int) -> Asked:
        """What answers so many drawn rows, with choices and positions of its own, which are still to be written."""
        part = self._part(num_rows, num_candidates)
        return part._replace(choices=part.choices.copy(), positions=part.positions.copy())

    def _part(self, num_rows: int, num_candidates: int) -> Asked:
        """What answers rows whose positions are not needed."""
        largest = self._largest.get(num_candidates)
        if largest is None or len(largest.choices) < num_rows:
            most = 1 << num_rows.bit_length()
            largest = self._largest[num_candidates] = self._asked(np.zeros(most, np.int64), most, num_candidates)
            if self._are_alike:  # at once, as the first call of a function takes longer than all the others
                for size in range(1, most + 1):
                    self._kept[size, num_candidates] = self._part(size, num_candidates)
        choices, dropped, positions = (
            part[:num_rows] for part in (largest.choices, largest.dropped, largest.positions)
        )
        return largest._replace(choices=choices, dropped=dropped, positions=positions)

    def _asked(self, positions: np.ndarray, num_rows: int, num_candidates: int) -> Asked:
        """What answers rows whose scores nothing changes."""
        choosers, alike = self._choosers_of(min(max(1, num_candidates), self.vocab_size))
        return Asked(
            choosers, alike.repeat(num_rows, axis=0), self._dropped.repeat(num_rows), positions, None, num_candidates,
            self.sampling.logprobs, contrast=self.contrast,
        )  # fmt: skip

    def _ask_scores(self, tree: TokenTree, scored: np.ndarray, length: int) -> Asked:
        """What answers rows whose targets are not wanted. length: of the sequence."""
        num_rows = len(tree)
        choosers = (FusedChooser(WHOLE, 1) if self._can_fuse(1) else FullVocabulary(1, is_greedy=True),)
        choices = layout_of(Sampling.greedy(), 1).repeat(num_rows, axis=0)
        return Asked(
            choosers, choices, np.zeros(num_rows, np.float32), tree.depths + length, None, 0,
            self.sampling.prompt_logprobs, scored,
        )  # fmt: skip

    def _masks(self, tree: TokenTree, tokens: Sequence[int]) -> Masks:
        """What the grammar and the other settings allow after each row."""
        found = self.grammar.masks(tree, tokens) if self.grammar else Masks.everything(len(tree), self.vocab_size)
        if self._allowed is not None:
            found.words[:] &= self._allowed
        if self.penalties and (banned := self.penalties.banned(tree, tokens)):
            found.forbid(banned)
        return found

    def answers(self, logits_RV: Tensor, tree: TokenTree, tokens: Sequence[int], num_candidates: int = 0) -> Answers:
        """The answers for all rows of a tree; see `ask`. logits_RV: float32 and contiguous, and stay as they are."""
        logits_RV = logits_RV.clone() if self.penalties or self._is_masked or self.contrast else logits_RV
        return launch_all([self.ask(tree, tokens, num_candidates)], logits_RV)()[0]

    def _can_fuse(self, num_tokens: int) -> bool:
        return self._device != "cpu" and can_fuse(self._device, num_tokens)

    def _choosers_of(self, num_tokens: int) -> tuple[tuple[Chooser, ...], np.ndarray]:
        if num_tokens not in self._choosers:
            made = choosers_for(self.sampling, self.vocab_size, num_tokens, self._can_fuse(num_tokens))
            self._choosers[num_tokens] = made, layout_of(self.sampling, num_tokens)
        return self._choosers[num_tokens]

    @torch.inference_mode()
    def scores(self, logits_RV: Tensor, tree: TokenTree, tokens: Sequence[int]) -> Tensor:
        """[R, V] scores after penalties and warpers. Tokens are drawn from each row's softmax."""
        asked, scores_RV = self.ask(tree, tokens), logits_RV.clone()
        if asked.contrast:
            apply_contrast(scores_RV, [(slice(0, len(scores_RV)), asked.contrast, asked.second)])
        if asked.touch:
            change(scores_RV, [(0, asked.touch())], can_fuse(scores_RV.device))
        if asked.mask:
            apply_masks(scores_RV, [(0, asked.mask())])
        return warp(Rows(scores_RV, asked.choices, asked.dropped, asked.positions))
