"""decode=auto: one tree of drafts from all sources beside a lookahead window, both as large as pays off."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from functools import partial

import numpy as np

from lp.decoder import Decoder, Described, ProposedDrafts
from lp.drafting.account import PLAIN, SPECULATE, WATCH
from lp.drafting.history import DraftHistory, nearest_power
from lp.drafting.settings import DraftSettings
from lp.methods.window import Window
from lp.step_cost import descending
from lp.tree import Accepted, Answers, CountDrafts, Drafted, TokenTree, chain, count_drafts, greatest_depth, no_drafts


class AutoDecoder(Decoder):
    """Chooses its own sizes: it measures what its drafts are worth."""

    def __init__(
        self,
        settings: DraftSettings,
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
        self._num_candidates = settings.candidates if keeps_answers else 0
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
        self._whole: TokenTree | None = None  # a proposed tree whose size is not a matter of choice
        self._seconds = 0.0  # modelled time of the present step
        self._effort = SPECULATE
        self._is_undivided = self.profile.cost.num_parts == 1
        # The next tree, if it was planned with learning from the last one; room and wanted tokens of `plan` (see
        # there) that it or the last tree was planned for; tokens and seconds of a step that have not been noted.
        self._ahead: TokenTree | None = None
        self._room = self._wanted = -1
        self._unnoted: tuple[int, float] | None = None
        # How long the sequence was when plain steps began; the sources have not learnt from them yet.
        self._plain_from: int | None = None

    @property
    def num_candidates(self) -> int:
        return 0 if self._effort is PLAIN else self._num_candidates

    @property
    def num_drafts(self) -> int:
        return 0 if self._effort is PLAIN else self.drafter.num_drafts - 1

    @property
    def expected(self) -> float:
        return 1.0 if self._effort is PLAIN else self.drafter.expected

    def plan(self, tokens: Sequence[int], room: int, wanted: int) -> TokenTree:
        tree, self._ahead = self._ahead, None
        if tree is not None and (room, wanted) == (self._room, self._wanted):
            self._seconds = self.profile.cost.by_rows[len(tree)]
            return tree
        self._room, self._wanted = room, wanted
        tree = self._begin(tokens, 1)
        return self._note_tree(self._grow_tree(room, wanted) if tree is None else tree)

    def propose(self, tokens: Sequence[int], room: int, wanted: int, load: int) -> ProposedDrafts:
        self._room = self._wanted = -1
        self._whole = self._begin(tokens, nearest_power(load))
        if self._whole is None and not self._has_choice:
            self._whole = self._grow_tree(room, wanted)
        if self._whole is not None:
            return ProposedDrafts(len(self._whole))
        self._window = self._choose_window(room)
        num_rows = 1 + (self._window.num_cells if self._window else 0)
        cost = self.profile.cost
        most_nodes = cost.rows_within(self.profile.account.limit_s) - num_rows
        odds = self.drafter.offer(greatest_depth(room, wanted), 1 + most_nodes, cost.least_odds)
        return ProposedDrafts(num_rows, descending(odds))

    def build_tree(self, num_drafts: int) -> TokenTree:
        return self._note_tree(self.drafter.take(num_drafts, self._window) if self._whole is None else self._whole)

    def keep(self, rows: Sequence[int]) -> TokenTree:
        return self.drafter.keep(rows, self._window)

    def narrow(self, rows: Sequence[int]) -> TokenTree:
        """`keep`, after which the step is reckoned to take as long as without the drafts that were dropped."""
        return self._note_tree(self.keep(rows))

    def follow(self, tokens: Sequence[int], more: Sequence[int]) -> None:
        self._ahead = None
        self._history = zlib.crc32(repr(list(more)).encode(), self._history)
        if self._plain_from is None:  # else they are learnt later
            self.drafter.move_to(tokens)
            self.drafter.learn_text(more)
            if self._window:
                self._window.slide(len(more))

    def _begin(self, tokens: Sequence[int], load: int) -> TokenTree | None:
        """Begins a step of about `load` sequences. Returns its tree, or None if it speculates."""
        self._note_step()
        if load != self._load:
            self._load, self.profile = load, self._profiles(load)
        self._effort = effort = self.profile.account.effort
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

    def _note_tree(self, tree: TokenTree) -> TokenTree:
        """Notes the seconds of a planned step."""
        if self._effort is not PLAIN:
            cost = self.profile.cost
            depth = int(tree.depths.max()) if cost.num_parts > 1 else 0  # it counts for shared trees alone
            self._seconds = cost.step_s(len(tree), depth)
        return tree

    def _grow_tree(self, room: int, wanted: int) -> TokenTree:
        """Plans a tree of drafts and the window."""
        self._window = self._choose_window(room)
        return self.drafter.grow(self._window, greatest_depth(room, wanted), self.profile.account.limit_s)

    def _choose_window(self, room: int) -> Window | None:
        trial = self._trials.get(self._load)
        if trial is None:
            self._trials[self._load] = trial = self.profile.windows.choose()
        columns = trial.size.columns
        return self._resize_window(columns, room) if columns else None

    def _resize_window(self, columns: int, room: int) -> Window | None:
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
        if self._looks_ahead():
            return self._go_on(answers)
        if self._effort is WATCH and (found := self.drafter.likeliest()):
            probability, token = found
            self.profile.account.watched(probability, token == answers.targets[0])
        kinds, num_drafts = self.drafter.kinds, self.drafter.num_drafts
        accepted = self.drafter.commit(answers)
        self._keep_for_sum(answers)
        if self._window:
            self.drafter.learn_ngrams(self._window.commit(answers.targets, len(accepted.tokens)))
        self._unnoted = len(accepted.tokens), self._seconds
        self._note_step()
        return accepted, partial(self._count, kinds, num_drafts, accepted)

    def _looks_ahead(self) -> bool:
        """Whether the next tree can be planned with learning from this one: the sequence is alone, on one device, and
        neither tree has a window.
        """
        if self._wanted < 0 or not self._is_undivided or self._effort is not SPECULATE or self._window:
            return False
        following = self._trials[1].next
        return following is not None and not following.size.columns

    def _go_on(self, answers: Answers) -> tuple[Accepted, CountDrafts]:
        """`commit`, and what `plan` is going to return. What the next tree does not need to know is noted later."""
        if self._unnoted is not None:
            self._note_step()
        kinds, num_drafts = self.drafter.kinds, self.drafter.num_drafts
        accepted, self._ahead = self.drafter.go_on(
            answers, self._room, self._wanted, self.profile.account, self._seconds
        )
        self._keep_for_sum(answers)
        count = len(accepted.tokens)
        self._room, self._wanted, self._unnoted = self._room - count, self._wanted - count, (count, self._seconds)
        return accepted, partial(self._count, kinds, num_drafts, accepted)

    def _note_step(self) -> None:
        """Tells those who choose what the last step has yielded, unless that was done."""
        if self._unnoted is None:
            return
        (count, seconds), self._unnoted = self._unnoted, None
        if self._effort is SPECULATE:
            trial = self._trials[self._load]
            self.profile.windows.learn(trial, count, seconds)
            if not trial.num_left:
                assert trial.following is not None
                self._trials[self._load] = trial.following
        self.profile.account.took_step(count, seconds)

    def _keep_for_sum(self, answers: Answers) -> None:
        """Keeps a step's answers for the checksum, to which they are added later."""
        if self._unsummed is not None:
            self._add_to_sum()
        self._unsummed = answers.targets if answers.candidates is None else answers.candidates

    def _take_plain(self, token: int) -> tuple[Accepted, CountDrafts]:
        self.profile.account.took_plain_step()
        return Accepted([token], [0], []), no_drafts

    def _count(self, kinds: Sequence[int], num_drafts: int, accepted: Accepted) -> Drafted:
        """Counts a step's drafts, notes the step, and adds its answers to the checksum: all that can wait."""
        self._note_step()
        self._add_to_sum()
        return count_drafts(self.profile.kinds.sources, kinds[:num_drafts], accepted)

    def _add_to_sum(self) -> None:
        if self._unsummed is not None:
            self._history, self._unsummed = zlib.crc32(self._unsummed.tobytes(), self._history), None

    def describe(self) -> Described:
        if self._effort is PLAIN:
            return Described(["root"])
        kinds, window = self.drafter.kinds[1 : self.drafter.num_drafts], self._window
        names = ["root", *map(self.profile.kinds.sources.__getitem__, kinds)]
        if window is None:
            return Described(names)
        return Described(names + ["cell"] * window.num_cells, (window.columns, len(window.cells)))

    def fingerprint(self) -> int:
        """See Decoder. The sources' state follows from what they were given, so a checksum of that stands for it."""
        self._note_step()
        self._add_to_sum()
        profile, cells = self.profile, self._window.cells if self._window else []
        learnt = [profile.estimates.probabilities, profile.windows.state(), profile.account.state()]
        state = [self._history, *learnt, self._trials, cells]
        return zlib.crc32(repr(state).encode()) >> 1
