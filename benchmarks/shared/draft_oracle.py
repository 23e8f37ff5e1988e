"""Compares decode=auto with an oracle that knows which of its sources' proposals are right.

The oracle's tree would hold exactly the right proposals, to any depth. What it would accept, and the tree did not, was
cut: it was proposed, but ranked too low for the rows. Where the oracle ends, no source had proposed the right token.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from benchmarks.shared.report import markdown_table
from lp import Auto, Engine, Sampling, Stopping
from lp.drafting.history import DraftHistory
from lp.drafting.ngrams import LONGEST
from lp.methods.auto.decoder import AutoDecoder
from lp.request import Request
from lp.tree import Accepted, Answers, CountDrafts

NOBODY = "nobody"


@dataclass
class OracleTally:
    """Steps of decode=auto beside those of the oracle, which starts every step from the same text and sources.

    tokens, oracle_tokens: tokens that the steps yielded, and would have yielded with the oracle's trees. accepted:
    number of drafts by the sources that had proposed them, "nobody" for window cells. ends: steps that were followed by
    others, by the sources that had proposed the first token that was not in the tree. cut, unproposed: how many of them
    were proposed, and how many by nobody.
    """

    steps: int = 0
    tokens: int = 0
    oracle_tokens: int = 0
    accepted: Counter[str] = field(default_factory=Counter)
    ends: Counter[str] = field(default_factory=Counter)

    @property
    def unproposed(self) -> int:
        return self.ends[NOBODY]

    @property
    def cut(self) -> int:
        return self.ends.total() - self.unproposed


class WatchedDecoder(AutoDecoder):
    """decode=auto that tells a tally what an oracle would have accepted."""

    def __init__(self, request: Request, history: DraftHistory, right: Sequence[int], tally: OracleTally):
        """right: the tokens that are to come."""
        decode, sampling = request.decode, request.sampling
        assert isinstance(decode, Auto) and decode.rows, "without a number of rows, steps without drafts would count"
        assert sampling.seed is not None and sampling.temperature is not None
        super().__init__(decode, request.prompt, sampling.seed, sampling.temperature, history)
        self.right, self.tally = list(right), tally

    def commit(self, tokens: Sequence[int], answers: Answers) -> tuple[Accepted, CountDrafts]:
        proposers = self._proposers(tokens, self.right)
        accepted, count_drafts = super().commit(tokens, answers)
        self._add_to_tally(proposers, min(len(accepted.tokens), len(self.right)))
        del self.right[: len(accepted.tokens)]
        return accepted, count_drafts

    def _proposers(self, tokens: Sequence[int], right: Sequence[int]) -> list[str]:
        """Lists, for each token to come but the last, the sources that propose it after the tokens before it."""
        path, found = [*tokens[-LONGEST:]], []
        for depth, token in enumerate(right[:-1]):
            kinds = [kind for kind, candidates in self.drafter.propose(path, depth) if token in candidates]
            found.append(" and ".join(sorted({self.profile.kinds.sources[kind] for kind in kinds})) or NOBODY)
            path.append(token)
        return found

    def _add_to_tally(self, proposers: list[str], num_tokens: int) -> None:
        tally, num_drafts = self.tally, num_tokens - 1
        tally.steps += 1
        tally.tokens += num_tokens
        tally.oracle_tokens += 1 + (proposers.index(NOBODY) if NOBODY in proposers else len(proposers))
        tally.accepted.update(proposers[:num_drafts])
        tally.ends.update(proposers[num_drafts : num_drafts + 1])


def tally_oracle(
    engine: Engine, decode: Auto, prompt: list[int], text: Sequence[int], sampling: Sampling, tally: OracleTally
) -> None:
    """Decodes a prompt whose text is known and adds its steps to the tally.

    decode: must name a number of rows. text: the new tokens, such as those of autoregressive decoding with the same
    sampling.
    """
    request = engine.request_builder.build(prompt, decode, sampling, Stopping(len(text), ignore_eos=True))
    engine.add_request(request)
    *_, state = engine.scheduler
    state.decoder = WatchedDecoder(request, engine.history, text, tally)
    while not engine.is_idle:
        engine.step()


def describe_oracle(tallies: Mapping[str, OracleTally]) -> str:
    """A table with a row for each method. tallies: by the methods' names."""
    columns = ["method", "tokens/step", "oracle", "tokens not proposed", "tokens cut", "accepted, by who proposed them"]
    rows = [
        (
            name,
            f"{tally.tokens / tally.steps:.2f}",
            f"{tally.oracle_tokens / tally.steps:.2f}",
            tally.unproposed,
            tally.cut,
            ", ".join(f"{source} {number}" for source, number in tally.accepted.most_common()),
        )
        for name, tally in tallies.items()
    ]
    return (
        "The oracle's trees hold all right proposals of the sources, to any depth; each of its steps starts where a "
        "step of the method starts. Steps end at a token that nobody had proposed, or that was proposed and cut.\n\n"
        + markdown_table(columns, rows)
    )
