"""Which replicas compute which rows of a batch: all of them share every tree, or one computes a small tree alone, or
all trees of a batch while the others draft ahead of them.

Every rank computes the same shares from the same inputs, so no message is needed: the batch, its trees, the measured
step times, and how much of each sequence every replica has computed. Shares affect speed, not results.
"""

from __future__ import annotations

from collections.abc import Sequence

from lp.runner.runner import StepInput
from lp.step_cost import StepCost, StepTimes
from lp.tree import TokenTree
from parallel.runners.copy_cost import NO_COPIES, CopyCost
from parallel.runners.partition import partition
from parallel.runners.resting import Resting
from parallel.runners.shares import KnownTokens, Shares, Split

# A replica that lacks more tokens of a sequence than this gets so many of them in each step, and no rows until then, so
# that no step waits for all of them.
LARGEST_LAG = 512
# The most rows of a tree by which step times are looked up.
MOST_ROWS = 256


class Sharing:
    """Shares batches among the replicas of a group.

    copy_cost: what it costs to copy what a replica lacks from another one. is_shared: whether all trees are shared, or
    each is computed by one replica; None decides by step times. owners: with parallel.mode=dp, the replica that
    computes all of a sequence; None otherwise.
    """

    def __init__(self, copy_cost: CopyCost = NO_COPIES, is_dp: bool = False):
        self.copy_cost = copy_cost
        self.is_shared: bool | None = None
        self.owners: dict[str, int] | None = {} if is_dp else None
        self._times: StepTimes | None = None
        self._costs: dict[bool, StepCost] = {}
        self._resting: dict[str, tuple[Resting, int]] = {}

    def use_times(self, times: StepTimes) -> None:
        """Decides by these step times from now on."""
        self._times = times
        self._costs.clear()
        self._resting.clear()

    def forget(self, sequence_id: str) -> None:
        """Forgets a sequence of which nothing is held any more."""
        self._resting.pop(sequence_id, None)
        if self.owners is not None:
            self.owners.pop(sequence_id, None)

    def share(self, steps: Sequence[StepInput], numbers: Sequence[Sequence[int]]) -> list[Shares]:
        """The shares of each step. numbers: for each, how many of its first tokens each replica has computed."""
        if self.owners is not None:
            return [self._owned(step, known, self.owners) for step, known in zip(steps, numbers, strict=True)]
        verifier = None
        if any(step.is_ahead for step in steps):
            totals = [sum(of_replica) for of_replica in zip(*numbers, strict=True)]
            verifier = totals.index(max(totals))
        return [self._share(step, known, len(steps), verifier) for step, known in zip(steps, numbers, strict=True)]

    def _owned(self, step: StepInput, known: Sequence[int], owners: dict[str, int]) -> Shares:
        """One replica computes all steps of a sequence: the one that holds most of it, else that owns the fewest."""
        if step.sequence.id not in owners:
            taken = list(owners.values())
            best = min(range(len(known)), key=lambda replica: (-known[replica], taken.count(replica)))
            owners[step.sequence.id] = best
        return Shares.whole(step, owners[step.sequence.id])

    def _share(self, step: StepInput, known: Sequence[int], num_steps: int, verifier: int | None) -> Shares:
        """verifier: the replica that computes all trees; None if they may be shared."""
        most = max(known)
        owner = known.index(most) if verifier is None else verifier
        if self.is_shared is False or step.tree.scored is not None:
            return Shares.whole(step, owner)
        trunk = step.num_computed - most
        largest_lag = max(LARGEST_LAG, trunk)
        lagging = [replica for replica, number in enumerate(known) if most - number > largest_lag]
        taking_part = [replica for replica in range(len(known)) if replica not in lagging]
        if self.copy_cost.splits(trunk, len(taking_part)):
            shares = split_prefill(step, known, [one for one in taking_part if one != owner] + [owner])
        elif not len(step.tree):
            shares = Shares({}, dict.fromkeys(taking_part, step.num_computed))
        elif verifier is None and self._decide(step, num_steps):
            shares = share_tree(step.tree, known, taking_part, self.copy_cost)
        else:
            shares = Shares.whole(step, owner)
            if trunk <= 0:
                return shares
            shares.feeds.update((replica, step.num_computed) for replica in taking_part if replica != owner)
        shares.feeds.update((replica, min(step.num_computed, known[replica] + LARGEST_LAG)) for replica in lagging)
        return shares

    def _decide(self, step: StepInput, num_steps: int) -> bool:
        """Whether several replicas compute a tree."""
        if self.is_shared is not None:
            return self.is_shared
        if self._times is None:
            return len(step.tree) > 1
        if self._times.alone is None:
            return True
        num_rows, name, tokens = len(step.tree), step.sequence.id, step.sequence.tokens
        resting, length = self._resting.get(name, (None, 0))
        if resting is None:
            resting = Resting(self._cost_of(step, self._times))
        else:
            resting.accepted(len(tokens) - length)
        self._resting[name] = resting, len(tokens)
        if num_steps > 1:
            resting.choose_among_many()
        else:
            resting.choose(min(num_rows, MOST_ROWS), int(step.tree.depths.max()))
        return resting.is_shared

    def _cost_of(self, step: StepInput, times: StepTimes) -> StepCost:
        is_sampled = step.sequence.sampling.temperature != 0
        if is_sampled not in self._costs:
            self._costs[is_sampled] = StepCost(times, MOST_ROWS, is_sampled)
        return self._costs[is_sampled]


def share_tree(
    tree: TokenTree, known: Sequence[int], replicas: Sequence[int] | None = None, copy_cost: CopyCost = NO_COPIES
) -> Shares:
    """Splits a tree among replicas; those that lack more tokens than others get a smaller part.

    known: how many of the sequence's first tokens each replica has computed. replicas: that take part; None is all.
    """
    lags = copy_cost.lags(max(known), known)
    chosen = range(len(known)) if replicas is None else replicas
    parts = partition(tree, len(chosen), [lags[replica] for replica in chosen])
    return Shares(dict(zip(chosen, parts, strict=True)))


def split_prefill(step: StepInput, known: Sequence[int], replicas: Sequence[int]) -> Shares:
    """Has replicas compute a part of a prompt each. The last of them gets all of it, and the rows of the step.

    known: how many of the prompt's first tokens each replica has computed.
    """
    start = max(known)
    trunk = step.num_computed - start
    bounds = [start + trunk * place // len(replicas) for place in range(len(replicas) + 1)]
    shares = Shares.whole(step, replicas[-1])
    shares.feeds.update(zip(replicas[:-1], bounds[1:-1], strict=True))
    shares.split = Split(tuple(replicas), tuple(bounds))
    return shares


class TreePartitioner:
    """Splits the trees of one sequence, step after step, or gives all of a tree to one replica while the others rest.

    A replica lacks the accepted tokens that others have computed. It computes them in the next step in which it takes
    part, as a trunk above the tree, and gets a smaller part of that tree.
    """

    def __init__(self, num_replicas: int):
        self._known = KnownTokens(num_replicas)
        self._length = 0

    def split(self, tree: TokenTree, tokens: Sequence[int], is_shared: bool = True) -> list[list[int]]:
        """The rows of each replica's part, ascending. tokens: the sequence; the last is the root."""
        known = self._known.count(tokens)
        owner = known.index(max(known))
        shares = share_tree(tree, known) if is_shared else Shares({owner: range(len(tree))})
        self._known.note(tree, len(tokens), shares)
        self._length = len(tokens)
        return [list(shares.rows.get(replica, ())) for replica in range(len(self._known.numbers))]

    @property
    def trunks(self) -> list[int]:
        """The number of tokens above the root of the last tree that each replica has not computed."""
        return [self._length - 1 - number for number in self._known.numbers]
