"""decode=auto: one tree of drafts from all sources beside a lookahead window, both as large as pays off."""

from __future__ import annotations

import math
import zlib
from collections import Counter
from collections.abc import Sequence

from lp.decoding.window import Window
from lp.drafting.backoff import Effort
from lp.drafting.base import Observation, SequenceStart, StepAnswers
from lp.drafting.contexts import last_token
from lp.drafting.growth import Growth, grow
from lp.drafting.history import DraftHistory
from lp.drafting.resting import Resting
from lp.drafting.sources import Sources
from lp.methods import Auto
from lp.tree import TokenTree, TreeBuilder, chain
from lp.verification import Accepted, Answers, Drafted, verify


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
        self.profile = history.profile(settings, temperature)
        shared = history.shared(owner) if settings.shared_drafts and owner is not None else None
        self._num_candidates = settings.candidates if settings.recycled_drafts or shared else 0
        self.sources = Sources(
            self.profile.kinds, SequenceStart(settings, prompt, temperature > 0, shared, history.index)
        )
        self._prompt, self._seed, self._levels = prompt, seed, settings.ngram - 1
        # A checksum of everything that the sources have learnt from.
        self._history = zlib.crc32(repr(prompt).encode())
        self._window: Window | None = None
        self._trial = self.profile.windows.choose()
        self._growth = Growth([])
        self._tree: TokenTree
        self._seconds = 0.0  # modelled time of the present step
        self._effort = Effort.speculate
        self._resting = Resting(self.profile.cost)
        # Tokens of the plain steps since the last speculative one; the sources have not learnt from them yet.
        self._num_plain = 0

    @property
    def num_candidates(self) -> int:
        return 0 if self._effort is Effort.plain else self._num_candidates

    @property
    def is_shared(self) -> bool:
        return self._resting.is_shared

    def plan(self, tokens: Sequence[int], room: int, wanted: int) -> TokenTree:
        self._effort = self.profile.account.effort
        if self._effort is Effort.plain:
            self._resting.choose_plain()
            self._tree = chain(tokens[-1:])
            return self._tree
        if self._num_plain:
            self.sources.move_to(tokens[: -self._num_plain])
            self.sources.learn(Observation(self.sources.root, tokens[-self._num_plain :]))
            self._num_plain, self._window = 0, None
        self.sources.move_to(tokens)
        self._tree = self._grown(room, min(room, wanted - 1)) if self._effort is Effort.speculate else self._watching()
        speed = self._growth.best_speed
        least_s = self._growth.expected / speed if speed else math.inf
        self._seconds = self._resting.choose(len(self._tree), int(self._tree.depths.max()), least_s)
        return self._tree

    def _watching(self) -> TokenTree:
        """Plans the root alone, and keeps what the sources propose to follow it."""
        self._window = None
        root = self.sources.root.context
        self._growth = Growth([last_token(root)], proposals=[self.sources.propose(root, 0)])
        return chain(self._growth.tokens)

    def _grown(self, room: int, max_depth: int) -> TokenTree:
        """Plans a tree of drafts and the window."""
        if not self._trial.num_left:
            self._trial = self.profile.windows.choose()
        self._window = self._sized(self._trial.size.columns, room)
        num_cells = self._window.num_cells if self._window else 0
        root = self.sources.root.context
        self._growth = grow(
            root,
            self.sources.propose,
            self.profile.estimates.probabilities,
            max_depth=max(0, max_depth),
            cost=self.profile.cost,
            other_rows=num_cells,
            limit_s=self.profile.account.limit_s,
            catch_up_s=self._resting.catch_up_s,
        )
        builder = TreeBuilder(last_token(root))
        builder.extend(self._growth.tokens[1:], self._growth.parents[1:], self._growth.depths[1:])
        if self._window:
            self._window.plan(builder)
        return builder.build()

    def _sized(self, columns: int, room: int) -> Window | None:
        """The window, resized to `columns`. None for 0 columns, or if the model has too few positions left for it."""
        if not columns:
            return None
        if self._window is None:
            window = Window(columns, self._levels, self._prompt, self._seed)
        else:
            window = self._window
            window.resize(columns)
        return window if window.depth <= room else None

    def commit(self, tokens: Sequence[int], answers: Answers) -> tuple[Accepted, Drafted]:
        if self._effort is Effort.plain:
            return self._take_plain(int(answers.targets[0]))
        accepted = verify(self._tree, answers.targets)
        known = answers.targets if answers.candidates is None else answers.candidates
        self._history = zlib.crc32(known.tobytes(), self._history)
        ngrams = self._window.commit(answers.targets, len(accepted.tokens)) if self._window else []
        if self._effort is Effort.watch:
            self._note_watched(accepted.tokens[0])
        self._learn_from(accepted)
        kept = None
        if answers.candidates is not None:
            kept = StepAnswers(self._tree, answers.candidates, accepted.rows)
        self.sources.learn(Observation(self.sources.root, accepted.tokens, ngrams, kept))
        if self._effort is Effort.speculate:
            self.profile.windows.learn(self._trial, len(accepted.tokens), self._seconds)
        self.profile.account.took_step(len(accepted.tokens), self._seconds)
        self._resting.accepted(len(accepted.tokens))
        return accepted, self._drafted(accepted)

    def _take_plain(self, token: int) -> tuple[Accepted, Drafted]:
        self.profile.account.took_plain_step()
        self._resting.accepted(1)
        self._num_plain += 1
        return Accepted([token], [0], []), Drafted(Counter(), [])

    def _note_watched(self, token: int) -> None:
        """Tells the account whether the likeliest proposal for the token after the root was right."""
        probabilities = self.profile.estimates.probabilities
        for first, candidates in sorted(self._growth.proposals[0], key=lambda entry: -probabilities[entry[0]])[:1]:
            self.profile.account.watched(probabilities[first], candidates[0] == token)

    def _learn_from(self, accepted: Accepted) -> None:
        """Compares the proposals along the accepted path, in the tree or cut from it, with the accepted tokens."""
        estimates, proposals = self.profile.estimates, self._growth.proposals
        for rows, token in zip([[0], *accepted.drafted], accepted.tokens, strict=True):
            row = next((row for row in rows if row < len(self._growth.tokens)), None)
            if row is None:  # from here on only window cells were right
                return
            for first, candidates in proposals[row]:
                estimates.learn(first, candidates, token)

    def _drafted(self, accepted: Accepted) -> Drafted:
        """Counts drafts by source. A window cell counts if it was accepted and no draft had the same path."""
        sources, kinds = self.profile.kinds.sources, self._growth.kinds
        proposed: Counter[str] = Counter()
        right: list[str] = []
        for kind in kinds[1:]:
            proposed[sources[kind]] += 1
        for rows in accepted.drafted:
            row = next((row for row in rows if row < len(kinds)), None)
            if row is None:
                proposed["window"] += 1
            right.append("window" if row is None else sources[kinds[row]])
        return Drafted(proposed, right)

    def fingerprint(self) -> int:
        """See Decoder. The sources' state follows from what they were given, so a checksum of that stands for it."""
        profile, cells = self.profile, self._window.cells if self._window else []
        learnt = [
            profile.estimates.probabilities,
            profile.windows.state(),
            profile.account.state(),
            self._resting.state(),
        ]
        state = [self._history, *learnt, self._trial, cells]
        return zlib.crc32(repr(state).encode()) >> 1
