"""decode=auto: one tree of drafts from all sources beside a lookahead window, both as large as pays off."""

from __future__ import annotations

import math
import zlib
from collections import Counter
from collections.abc import Sequence
from functools import partial

import numpy as np

from lp.decoding.base import Offer
from lp.decoding.odds import descending
from lp.decoding.window import Window
from lp.drafting.backoff import PLAIN, SPECULATE, WATCH
from lp.drafting.history import DraftHistory, nearest_power
from lp.drafting.resting import Resting
from lp.methods import Auto
from lp.tree import TokenTree, chain
from lp.verification import Accepted, Answers, CountDrafts, Drafted, no_drafts


class AutoDecoder:
    """A Decoder that chooses its own sizes: it measures what its drafts are worth."""

    def __init__(
        self,
        settings: Auto,
        prompt: Sequence[int],
        seed: int,
        temperature: float,
        history: DraftHistory,
        owner: str | None = None,
    ):
        """history: what the engine has learnt from earlier requests. owner: who sent the request; requests of the same
        owner share drafts if the settings allow it.
        """
        self._profiles = partial(history.profile, settings, temperature)
        self.profile = self._profiles()
        keeps_answers = settings.recycled_drafts or (settings.shared_drafts and owner is not None)
        self._num_candidates = self.num_candidates = settings.candidates if keeps_answers else 0
        self.is_shared = True
        self.drafter = history.drafter(settings, prompt, temperature, owner)
        self._prompt, self._seed, self._levels = prompt, seed, settings.ngram - 1
        # A checksum of everything that the sources have learnt from, without the last step's answers.
        self._history = zlib.crc32(repr(prompt).encode())
        self._unsummed: np.ndarray | None = None
        self._window: Window | None = None
        self._has_choice = not settings.rows
        self._load = 1
        # The sizes of the window that are being tried, by the sequences of a step.
        self._trials = {self._load: self.profile.windows.choose()}
        self._whole: TokenTree | None = None  # an offered tree whose size is not a matter of choice
        self._seconds = 0.0  # modelled time of the present step
        self._effort = SPECULATE
        self._resting, self._may_rest = Resting(self.profile.cost), self.profile.cost.may_rest
        self._is_undivided = self.profile.cost.num_parts == 1 and not self._may_rest
        # Whether the drafter is at the end of the sequence, which had its last step alone.
        self._goes_on = False
        # How long the sequence was when plain steps began; the sources have not learnt from them yet.
        self._plain_from: int | None = None

    @property
    def num_drafts(self) -> int:
        return 0 if self._effort is PLAIN else self.drafter.num_drafts - 1

    @property
    def expected(self) -> float:
        return 1.0 if self._effort is PLAIN else self.drafter.expected

    def plan(self, tokens: Sequence[int], room: int, wanted: int) -> TokenTree:
        if self._goes_on and self.profile.account.effort is SPECULATE:  # as most steps do, with as few calls as can be
            self._effort, self.num_candidates = SPECULATE, self._num_candidates
            tree = self._grown(room, wanted)
            self._seconds = self.profile.cost.by_rows[len(tree)]
            return tree
        tree = self._begun(tokens, 1)
        return self._noted(self._grown(room, wanted) if tree is None else tree)

    def offer(self, tokens: Sequence[int], room: int, wanted: int, load: int) -> Offer:
        self._whole = self._begun(tokens, nearest_power(load))
        if self._whole is None and not self._has_choice:
            self._whole = self._grown(room, wanted)
        if self._whole is not None:
            return Offer(len(self._whole))
        self._window = self._chosen_window(room)
        num_rows = 1 + (self._window.num_cells if self._window else 0)
        cost = self.profile.cost
        most_nodes = cost.rows_within(self.profile.account.limit_s) - num_rows
        odds = self.drafter.offer(max(0, min(room, wanted - 1)), 1 + most_nodes, cost.least_odds)
        return Offer(num_rows, descending(odds))

    def take(self, num_drafts: int) -> TokenTree:
        return self._noted(self.drafter.take(num_drafts, self._window) if self._whole is None else self._whole)

    def keep(self, rows: Sequence[int]) -> TokenTree:
        return self.drafter.keep(rows, self._window)

    def follow(self, tokens: Sequence[int], more: Sequence[int]) -> None:
        self._history = zlib.crc32(repr(list(more)).encode(), self._history)
        if self._plain_from is None:  # else they are learnt later
            self.drafter.move_to(tokens)
            self.drafter.learn_text(more)
            if self._window:
                self._window.slide(len(more))

    def _begun(self, tokens: Sequence[int], load: int) -> TokenTree | None:
        """Begins a step of about `load` sequences. Returns its tree, or None if it speculates."""
        if load != self._load:
            self._load, self.profile = load, self._profiles(load)
        self._goes_on = False
        self._effort = effort = self.profile.account.effort
        self.num_candidates = 0 if effort is PLAIN else self._num_candidates
        if effort is PLAIN:
            self._plain_from = self._plain_from or len(tokens)
            return chain(tokens[-1:])
        if self._plain_from is not None:
            self.drafter.move_to(tokens[: self._plain_from])
            self.drafter.learn_text(tokens[self._plain_from :])
            self._plain_from = self._window = None
        self.drafter.move_to(tokens)
        if effort is SPECULATE:
            return None
        self._window = None
        return self.drafter.watch()

    def _noted(self, tree: TokenTree) -> TokenTree:
        """Notes the seconds of a planned step, and decides whether ranks share it."""
        cost = self.profile.cost
        depth = int(tree.depths.max()) if cost.num_parts > 1 else 0  # it counts for shared trees alone
        if not self._may_rest and self._effort is not PLAIN:
            self._seconds = cost.shared_s(len(tree), depth)
        elif self._load > 1:
            self._resting.choose_among_many()
            self._seconds = cost.step_s(len(tree), depth)
        elif self._effort is PLAIN:
            self._resting.choose_plain()
        else:
            speed = self.drafter.best_speed
            least_s = self.drafter.expected / speed if speed else math.inf
            self._seconds = self._resting.choose(len(tree), depth, least_s)
        self.is_shared = self._resting.is_shared
        return tree

    def _grown(self, room: int, wanted: int) -> TokenTree:
        """Plans a tree of drafts and the window."""
        trial = self._trials.get(self._load)
        has_none = trial is not None and trial.num_left and not trial.size.columns
        self._window = None if has_none else self._chosen_window(room)
        catch_up_s = self._resting.catch_up_s if self._may_rest else 0.0
        max_depth = max(0, min(room, wanted - 1))  # the last token that is wanted needs no draft
        return self.drafter.grow(self._window, max_depth, self.profile.account.limit_s, catch_up_s)

    def _chosen_window(self, room: int) -> Window | None:
        trial = self._trials.get(self._load)
        if trial is None or not trial.num_left:
            self._trials[self._load] = trial = self.profile.windows.choose()
        columns = trial.size.columns
        return self._sized(columns, room) if columns else None

    def _sized(self, columns: int, room: int) -> Window | None:
        """The window, resized to `columns`. None if the model has too few positions left for it."""
        if self._window is None:
            window = Window(columns, self._levels, self._prompt, self._seed)
        else:
            window = self._window
            window.resize(columns)
        return window if window.depth <= room else None

    def commit(self, tokens: Sequence[int], answers: Answers) -> tuple[Accepted, CountDrafts]:
        if self._effort is PLAIN:
            return self._take_plain(int(answers.targets[0]))
        if self._effort is WATCH and (found := self.drafter.likeliest()):
            probability, token = found
            self.profile.account.watched(probability, token == answers.targets[0])
        kinds, num_drafts = self.drafter.kinds, self.drafter.num_drafts
        accepted = self.drafter.commit(answers)
        if self._unsummed is not None:
            self._add_to_sum()
        self._unsummed = answers.targets if answers.candidates is None else answers.candidates
        if self._window:
            self.drafter.learn_ngrams(self._window.commit(answers.targets, len(accepted.tokens)))
        if self._effort is SPECULATE:
            self.profile.windows.learn(self._trials[self._load], len(accepted.tokens), self._seconds)
        self.profile.account.took_step(len(accepted.tokens), self._seconds)
        if self._may_rest:
            self._resting.accepted(len(accepted.tokens))
        self._goes_on = self._load == 1 and self._is_undivided
        return accepted, partial(self._count, kinds, num_drafts, accepted)

    def _take_plain(self, token: int) -> tuple[Accepted, CountDrafts]:
        self.profile.account.took_plain_step()
        if self._may_rest:
            self._resting.accepted(1)
        return Accepted([token], [0], []), no_drafts

    def _count(self, kinds: Sequence[int], num_drafts: int, accepted: Accepted) -> Drafted:
        """Counts a step's drafts, and adds its answers to the checksum: both can wait."""
        self._add_to_sum()
        return count_drafts(self.profile.kinds.sources, kinds[:num_drafts], accepted)

    def _add_to_sum(self) -> None:
        if self._unsummed is not None:
            self._history, self._unsummed = zlib.crc32(self._unsummed.tobytes(), self._history), None

    def fingerprint(self) -> int:
        """See Decoder. The sources' state follows from what they were given, so a checksum of that stands for it."""
        self._add_to_sum()
        profile, cells = self.profile, self._window.cells if self._window else []
        learnt = [
            profile.estimates.probabilities,
            profile.windows.state(),
            profile.account.state(),
            self._resting.state(),
        ]
        state = [self._history, *learnt, self._trials, cells]
        return zlib.crc32(repr(state).encode()) >> 1


def count_drafts(sources: Sequence[str], kinds: Sequence[int], accepted: Accepted) -> Drafted:
    """Counts drafts by source. A window cell counts if it was accepted and no draft had the same path.

    sources: the source of each kind. kinds: of the root and each draft; the window's cells come after them.
    """
    numbers: list[int] = np.asarray(kinds).tolist()
    proposed = Counter(sources[kind] for kind in numbers[1:])
    right: list[str] = []
    for rows in accepted.drafted:
        row = next((row for row in rows if row < len(kinds)), None)
        if row is None:
            proposed["window"] += 1
        right.append("window" if row is None else sources[kinds[row]])
    return Drafted(proposed, right)
