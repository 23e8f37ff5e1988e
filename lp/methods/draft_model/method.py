"""decode=draft_model: a tree of drafts from a second model, as large as pays off (Leviathan et al., arXiv 2211.17192;
trees as in SpecInfer, arXiv 2305.09781, and Sequoia, arXiv 2402.12374).

Verification is that of all methods: a draft counts if it is the target. Under sampling the second model draws with the
noise of each position, so it draws what the model will draw wherever both agree well enough. With verify=rejection the
targets are coupled to the drafts instead (lp/sampling/couplings.py).
"""

from __future__ import annotations

import dataclasses
import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from lp.decoder import Described, ProposedDrafts
from lp.drafting.history import DraftHistory
from lp.methods.draft_model.asking import Asking, Experience
from lp.methods.draft_model.growth import Growth
from lp.methods.draft_model.interface import DraftedDecoder, SecondText, Wish
from lp.methods.draft_model.rounds import DraftedText
from lp.model.second_model import DRAFT
from lp.request import DecodingContext, DecodingMethod, ModelTraits, Request, RowBounds
from lp.step_cost import StepCost
from lp.tree import (
    Accepted,
    Answers,
    CountDrafts,
    Coupled,
    Drafted,
    Proposal,
    TokenTree,
    TreeBuilder,
    chain,
    verify,
)

# How drafts are verified.
EXACT, REJECTION = "exact", "rejection"


@dataclass
class DraftModel(DecodingMethod):
    """Drafts from a second model (arXiv 2211.17192) in a tree, as large as pays off. The engine's setting `draft` says
    which model.

    depth: the most drafts that follow one another. max_rows: the most rows of a step. rows: use this many rows whatever
    they cost; 0 takes as many as pay off. verify: "exact" accepts a draft if the model chooses the same token, so that
    the text is the same as without drafts; "rejection" is classical rejection sampling of a chain of drafts, whose text
    is distributed alike, but is another one than plain sampling gives with the same seed.
    """

    method: ClassVar[str] = "draft_model"
    needs_engine: ClassVar[bool] = True
    depth: int = 8
    max_rows: int = 32
    rows: int = 0
    verify: str = EXACT

    @property
    def is_chain(self) -> bool:
        """Whether drafts are verified by rejection sampling."""
        return self.verify == REJECTION

    def check_values(self) -> None:
        if self.verify not in (EXACT, REJECTION):
            raise ValueError(f"decode.verify={self.verify} must be {EXACT} or {REJECTION}")

    def check_model(self, model: ModelTraits) -> None:
        if DRAFT not in model.roles:
            raise ValueError(
                "decode=draft_model needs a second model, and none is loaded: start with draft.path=FOLDER (a model "
                "with the same vocabulary), draft.weights=int8 (the model itself in 8 bits) or "
                "draft.layers=N (its first layers)"
            )

    def check_request(self, request: Request) -> None:
        if request.grammar is not None and self.is_chain:
            raise ValueError("a grammar is not for decode.verify=rejection; use decode.verify=exact")

    def row_bounds(self) -> RowBounds:
        if self.is_chain:
            return RowBounds(self.depth + 1, self.depth + 1)
        return RowBounds(max(1, self.rows), max(self.max_rows, self.rows), by_time=not self.rows)

    def make_decoder(self, request: Request, context: DecodingContext) -> ModelDecoder:
        temperature = request.sampling.temperature
        assert temperature is not None
        text = drafted_text(request, context, not self.is_chain and not self.rows, self.is_chain)
        history = history_of(text, context)
        cost = history.cost(self.rows, self.max_rows, temperature)
        experience = history.of_all(self.method, temperature, Experience)
        return ModelDecoder(self, text, cost, experience)


def drafted_text(request: Request, context: DecodingContext, can_be_ahead: bool, is_drawn: bool = False) -> DraftedText:
    """What the draft model holds of a request's sequence.

    can_be_ahead: whether drafts may be made on other ranks, while a step is computed. is_drawn: see DraftText.
    """
    second, prompt_length = context.extensions[DRAFT], len(request.prompt)
    assert second.model is not None, "it is a second model"
    find_cache = second.find_cache and partial(second.find_cache, request.id)
    if second.is_ahead and not can_be_ahead:  # all ranks draft alike, each with keys and values of its own
        find_cache = None
    return DraftedText(
        second.model, request.sampling, prompt_length, context.vocab_size,
        second.relative_costs, is_drawn, find_cache, second.is_ahead and can_be_ahead,
    )  # fmt: skip


def history_of(text: DraftedText, context: DecodingContext) -> DraftHistory:
    """What a request plans its trees by: if others draft ahead of its steps, one part computes them."""
    return context.history.of_one_part() if text.is_ahead else context.history


class ModelDecoder(DraftedDecoder):
    """Drafts with a second model alone."""

    def __init__(self, settings: DraftModel, text: SecondText, cost: StepCost, experience: Experience):
        """cost: of the model's steps; all decisions about rows are made by it and by the second model's share of it.
        experience: of such requests.
        """
        super().__init__(text, settings.depth, experience.ahead)
        self._settings, self._cost = settings, cost
        self._calibration = experience.calibration
        self._asking = Asking(experience, cost, text.reads_text, not text.is_ahead)
        self._is_chain = settings.is_chain
        self._expected = 1.0
        self._growth: Growth | None = None  # drafted for the step that is planned next
        self.tree = chain([0])  # the one planned last
        self._grown: Growth | None = None

    @property
    def expected(self) -> float:
        return self._expected

    @property
    def num_drafts(self) -> int:
        return len(self.tree) - 1

    @property
    def grown(self) -> Growth:
        assert self._grown is not None
        return self._grown

    @property
    def step_time(self) -> float:
        return self._cost.step_s(len(self.tree), 0) / self._cost.plain_s

    def wish(self, tokens: Sequence[int], room: int, wanted: int, load: int) -> Wish:
        settings, depth = self._settings, self._limit_depth(tokens, room, wanted)
        most = settings.depth if self._is_chain else (settings.rows or settings.max_rows) - 1
        round_cost = 0.0 if settings.rows or self._is_chain else self._text.relative_cost
        self._growth = Growth(
            tokens[-1], self._calibration, depth, most, round_cost, self._is_chain, self._text.relative_costs
        )
        self._plant(self._growth)
        self._asking.limit(self._growth, len(tokens), wanted)
        return Wish(self._text, tokens, self._growth)

    def _draft(self, tokens: Sequence[int], room: int, wanted: int, load: int) -> Growth:
        """What has been drafted for this step, or is drafted now."""
        if self._growth is None or self._growth.nodes[0].token != tokens[-1]:
            self._text.draft([self.wish(tokens, room, wanted, load)], is_alone=load == 1)
        growth, self._growth = self._growth, None
        assert growth is not None
        self._grown = growth
        return growth

    def plan(self, tokens: Sequence[int], room: int, wanted: int) -> TokenTree:
        growth = self._draft(tokens, room, wanted, 1)
        return self._take(self._best_number(growth))

    def _best_number(self, growth: Growth) -> int:
        """The number of drafts that the tree gets."""
        if self._is_chain or self._settings.rows:
            return len(growth.best())
        return number_that_pays(growth, self._cost)

    def propose(self, tokens: Sequence[int], room: int, wanted: int, load: int) -> ProposedDrafts:
        growth = self._draft(tokens, room, wanted, load)
        best = growth.best()
        if self._is_chain or self._settings.rows:
            return ProposedDrafts(1 + len(best))
        return ProposedDrafts(1, [growth.nodes[number].odds for number in best])

    def build_tree(self, num_drafts: int) -> TokenTree:
        is_whole = self._is_chain or self._settings.rows
        return self._take(len(self.grown.best()) if is_whole else num_drafts)

    def _take(self, num_drafts: int) -> TokenTree:
        """The tree of the likeliest drafts."""
        growth = self.grown
        builder, self._rows = TreeBuilder(growth.nodes[0].token), [0]
        places = {0: 0}
        for number in growth.best()[:num_drafts]:
            node = growth.nodes[number]
            places[number] = builder.add(node.token, places[node.parent])
            self._rows.append(number)
        self._expected = 1.0 if self._is_chain else 1.0 + sum(growth.nodes[number].odds for number in self._rows[1:])
        self.tree = builder.build()
        if self._is_chain:
            proposals = [self._proposal(growth, number) for number in self._rows]
            self.tree = dataclasses.replace(self.tree, coupled=Coupled(REJECTION, proposals))
        return self.tree

    def _proposal(self, growth: Growth, number: int) -> Proposal:
        """What was drawn after a node of a chain, if the tree has it."""
        candidates = growth.nodes[number].candidates
        if candidates is None or number == self._rows[-1]:
            return Proposal()
        return Proposal(tuple(candidates.tokens), candidates.distribution)

    def keep(self, rows: Sequence[int]) -> TokenTree:
        self.tree = self.tree.take(rows)
        self._rows = [self._rows[row] for row in rows]
        return self.tree

    def commit(self, tokens: Sequence[int], answers: Answers) -> tuple[Accepted, CountDrafts]:
        accepted = verify(self.tree, answers.targets)
        for row, target in zip(accepted.rows, accepted.tokens, strict=True):
            self.grown.learn(self._rows[row], target)
        self._asking.learn(len(accepted.tokens), len(accepted.drafted), len(self.tree), self.num_drafts)
        is_covered = self._end_with(accepted.tokens)
        accepted_by = [self.source] * len(accepted.drafted)
        drafted = Drafted(Counter({self.source: self.num_drafts}), accepted_by, is_covered)
        return accepted, lambda: drafted

    def describe(self) -> Described:
        return Described(["root", *[self.source] * self.num_drafts], drafted_for=self._ends())

    def fingerprint(self) -> int:
        tokens, parents = self.tree.as_lists()
        state = tokens, parents, self._calibration.state(), self._asking.state(), self._worth.state()
        return zlib.crc32(repr(state).encode()) >> 1


def number_that_pays(growth: Growth, cost: StepCost, other_rows: int = 0) -> int:
    """The number of the best drafts that are expected to gain most tokens over those that are decoded in their time.

    other_rows: rows of the step besides the root and the drafts.
    """
    first, pace = 1 + other_rows, growth.pace / cost.step_s(1, 0)
    expected, depth, gains = 1.0, 0, [1.0 - pace * cost.step_s(first, 0)]
    for number in growth.best()[: cost.most_rows - first]:
        node = growth.nodes[number]
        expected, depth = expected + node.odds, max(depth, node.depth)
        gains.append(expected - pace * cost.step_s(len(gains) + first, depth))
    return len(gains) - 1 - gains[::-1].index(max(gains))
