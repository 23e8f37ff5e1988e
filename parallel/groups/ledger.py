"""What a front end knows of the requests in its group: enough to continue them, whichever ranks are lost.

After a loss, ranks may send the same tokens again; what was delivered once is not delivered a second time. Knows
nothing of how ranks are reached.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from lp.kv_cache.cache import pages_of
from lp.request import Output, Request
from lp.statistics import Statistics
from lp.text.stopping import REFUSALS
from parallel.groups.elastic import Load, Movable
from parallel.groups.epoch import RunningRequest
from parallel.groups.messages import Abort, AddRequest, Command


@dataclass
class _Entry:
    """A running request.

    rank: the leader that serves it; None while there is none. target: the leader to which it moves while the first one
    still serves it. has_moved: whether another one of the same epoch did so
    before; its outputs are ignored. tokens, num_characters: what was delivered to the client. sent_tokens,
    sent_characters: how much that leader has sent, which begins again with the first token. before: what the request
    cost at earlier leaders. cached: see Ledger.cached.
    """

    request: Request
    rank: int | None = None
    target: int | None = None
    has_moved: bool = False
    tokens: list[int] = field(default_factory=list)
    num_characters: int = 0
    sent_tokens: int = 0
    sent_characters: int = 0
    stats: Statistics = field(default_factory=Statistics)
    before: Statistics = field(default_factory=Statistics)
    is_cancelled: bool = False
    cached: dict[int, int] = field(default_factory=dict)

    def restart(self) -> None:
        """Expects outputs from the first token on."""
        self.sent_tokens = self.sent_characters = 0
        self.before = self.stats


class Ledger:
    """The running requests by id, from the command that adds each to the output that ends it."""

    def __init__(self) -> None:
        self._entries: dict[str, _Entry] = {}
        self._epoch = 0

    def __len__(self) -> int:
        return len(self._entries)

    def loads(self, ranks: Iterable[int]) -> dict[int, Load]:
        """Returns what each of these leaders serves."""
        loads = {rank: Load() for rank in ranks}
        for name, entry in self._entries.items():
            rank = entry.rank if entry.target is None else entry.target
            if rank in loads:
                loads[rank].add(name, 0 if entry.tokens else len(entry.request.prompt))
        return loads

    def waiting(self) -> list[Request]:
        """Those that no rank serves."""
        return [entry.request for entry in self._entries.values() if entry.rank is None]

    def movable(self) -> Iterator[Movable]:
        """Those that may move to another leader.

        One that has moved in this epoch, or that is being cancelled, stays where it is.
        """
        for entry in self._entries.values():
            if entry.rank is not None and entry.target is None and not entry.has_moved and not entry.is_cancelled:
                yield Movable.of(entry.request, len(entry.tokens))

    @property
    def num_pages(self) -> int:
        """The pages that the keys and values of all requests take, as far as they have come."""
        return sum(pages_of(len(entry.request.prompt) + len(entry.tokens)) for entry in self._entries.values())

    def hold(self, epoch: int, rank: int, cached: Mapping[str, int]) -> None:
        """Notes how many tokens of each request have keys and values on a rank that has left this epoch."""
        for name, number in cached.items() if epoch == self._epoch else ():
            if entry := self._entries.get(name):
                entry.cached[rank] = number

    def cached(self, request_id: str) -> Mapping[int, int]:
        """By rank, how many tokens of a request had keys and values there when the last epoch ended."""
        return self._entries[request_id].cached

    def rank_of(self, request_id: str) -> int | None:
        """The rank that serves a request; None if it has ended, or if there is none."""
        entry = self._entries.get(request_id)
        return entry and entry.rank

    def target_of(self, request_id: str) -> int | None:
        """The rank to which a request is moving; None if it is not."""
        entry = self._entries.get(request_id)
        return entry and entry.target

    def is_cancelled(self, request_id: str) -> bool:
        return self._entries[request_id].is_cancelled

    def set_target(self, request_id: str, rank: int) -> None:
        """Notes that a request is about to move to this rank. `place` follows when it does."""
        self._entries[request_id].target = rank

    def note(self, command: Command) -> None:
        """Notes a command on its way to the ranks."""
        match command:
            case AddRequest(request):
                stats = Statistics(prompt_tokens=len(request.prompt))
                self._entries[request.id] = _Entry(request, stats=stats, before=stats)
            case Abort(request_id) if entry := self._entries.get(request_id):
                entry.is_cancelled = True

    def begin(self, epoch: int, ranks: Iterable[int]) -> None:
        """Begins an epoch: only outputs of its leaders count from now on.

        ranks: the leaders that go on with what they have; all other requests wait for one.
        """
        self._epoch = epoch
        going_on = set(ranks)
        for entry in self._entries.values():
            entry.rank = entry.rank if entry.rank in going_on else None
            entry.target, entry.has_moved = None, False
            entry.restart()

    def place(self, request_id: str, rank: int) -> None:
        """Notes that from now on this rank serves a request, beginning with its first token."""
        entry = self._entries[request_id]
        entry.has_moved = entry.rank is not None
        entry.rank, entry.target = rank, None
        entry.cached = {}
        entry.restart()

    def running(self, rank: int) -> list[RunningRequest]:
        """What a leader must know to go on with its requests."""
        return [self.known(name) for name, entry in self._entries.items() if entry.rank == rank]

    def known(self, request_id: str) -> RunningRequest:
        """A request with the tokens that the client has."""
        entry = self._entries[request_id]
        return RunningRequest(entry.request, [*entry.tokens])

    def end_cancelled(self) -> list[Output]:
        """Ends the cancelled requests that no rank has ended. For the time when no rank can."""
        ended = [request_id for request_id, entry in self._entries.items() if entry.is_cancelled]
        return [Output(name, [], "", None, "cancelled", self._entries.pop(name).stats) for name in ended]

    def new_part(self, rank: int, epoch: int, output: Output) -> Output | None:
        """The new part of a leader's output; None if nothing is new, or if it no longer serves the request."""
        entry = self._entries.get(output.request_id)
        if entry is None or epoch != self._epoch or rank != entry.rank:
            return None
        if output.finish_reason in REFUSALS:  # its text is a message, not a part of what the client has
            del self._entries[output.request_id]
            return output
        tokens = output.tokens[max(0, len(entry.tokens) - entry.sent_tokens) :]
        text = output.text[max(0, entry.num_characters - entry.sent_characters) :]
        entry.sent_tokens += len(output.tokens)
        entry.sent_characters += len(output.text)
        entry.tokens += tokens
        entry.num_characters += len(text)
        entry.stats = output.stats.after(entry.before)
        if output.finish_reason:
            del self._entries[output.request_id]
        elif not tokens and not text:
            return None
        logprobs = output.logprobs and output.logprobs[len(output.tokens) - len(tokens) :]
        trace = output.trace and output.trace._replace(step=entry.stats.steps - 1)
        return replace(output, tokens=tokens, text=text, logprobs=logprobs, stats=entry.stats, trace=trace)

    def drop_all(self) -> None:
        """Forgets all requests, as no rank is left to continue them."""
        self._entries.clear()
