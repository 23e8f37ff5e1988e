"""What a front end knows of the requests in its group: enough to continue them, whichever ranks are lost.

After a loss, ranks may tell the same tokens again; what was delivered once is not delivered a second time. Knows
nothing of how ranks are reached.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from launch.supervisor.dealing import Load
from launch.supervisor.moving import Movable
from lp.request import Output, Request
from lp.statistics import Statistics
from parallel.group.commands import Abort, AddRequest, Command
from parallel.group.epoch import RunningRequest


@dataclass
class _Entry:
    """A running request.

    rank: the leader that serves it; None while there is none. has_moved: whether another one of the same epoch did so
    before; what that one still says of it is ignored. tokens, num_characters: what was delivered to the client.
    told_tokens, told_characters: how much that leader has told, which begins again with the first token. before: what
    the request cost at earlier leaders. cached: see Ledger.cached.
    """

    request: Request
    rank: int | None = None
    has_moved: bool = False
    tokens: list[int] = field(default_factory=list)
    num_characters: int = 0
    told_tokens: int = 0
    told_characters: int = 0
    stats: Statistics = field(default_factory=Statistics)
    before: Statistics = field(default_factory=Statistics)
    is_cancelled: bool = False
    cached: dict[int, int] = field(default_factory=dict)

    def tell_again(self) -> None:
        """Expects all to be told again from the first token on."""
        self.told_tokens = self.told_characters = 0
        self.before = self.stats


class Ledger:
    """The running requests by id, from the command that submits each to the progress that ends it."""

    def __init__(self) -> None:
        self._entries: dict[str, _Entry] = {}
        self._epoch = 0

    def __len__(self) -> int:
        return len(self._entries)

    def loads(self, ranks: Iterable[int]) -> dict[int, Load]:
        """Returns what each of these leaders serves."""
        loads = {rank: Load() for rank in ranks}
        for name, entry in self._entries.items():
            if entry.rank in loads:
                loads[entry.rank].add(name, 0 if entry.tokens else len(entry.request.prompt))
        return loads

    def waiting(self) -> list[Request]:
        """Those that no rank serves."""
        return [entry.request for entry in self._entries.values() if entry.rank is None]

    def movable(self, request_ids: Iterable[str]) -> Iterator[Movable]:
        """Those of these requests that may move to another leader.

        One that has moved in this epoch, or that is being cancelled, stays where it is.
        """
        for name in request_ids:
            entry = self._entries[name]
            if not entry.has_moved and not entry.is_cancelled:
                yield Movable.of(entry.request, len(entry.tokens))

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

    def note(self, command: Command) -> None:
        """Notes a command on its way to the ranks."""
        match command:
            case AddRequest(request):
                stats = Statistics(prompt_tokens=len(request.prompt))
                self._entries[request.id] = _Entry(request, stats=stats, before=stats)
            case Abort(request_id) if entry := self._entries.get(request_id):
                entry.is_cancelled = True

    def begin(self, epoch: int, ranks: Iterable[int]) -> None:
        """Begins an epoch: only what its leaders tell counts from now on.

        ranks: the leaders that go on with what they have; all other requests wait for one.
        """
        self._epoch = epoch
        going_on = set(ranks)
        for entry in self._entries.values():
            entry.rank = entry.rank if entry.rank in going_on else None
            entry.has_moved = False
            entry.tell_again()

    def place(self, request_id: str, rank: int) -> None:
        """Notes that from now on this rank serves a request, beginning with its first token."""
        entry = self._entries[request_id]
        entry.has_moved = entry.rank is not None
        entry.rank = rank
        entry.cached = {}
        entry.tell_again()

    def running(self, rank: int) -> list[RunningRequest]:
        """What a leader must know to go on with its requests."""
        return [self.known(name) for name, entry in self._entries.items() if entry.rank == rank]

    def known(self, request_id: str) -> RunningRequest:
        """A request with the tokens that the client has."""
        entry = self._entries[request_id]
        return RunningRequest(entry.request, [*entry.tokens])

    def end_cancelled(self) -> list[Output]:
        """Ends the cancelled requests whose end no rank has told. For the time when no rank can tell it."""
        ended = [request_id for request_id, entry in self._entries.items() if entry.is_cancelled]
        return [Output(name, [], "", None, "cancelled", self._entries.pop(name).stats) for name in ended]

    def take(self, rank: int, epoch: int, progress: Output) -> Output | None:
        """The new part of what a leader tells; None if nothing is new, or if it no longer serves the request."""
        entry = self._entries.get(progress.request_id)
        if entry is None or epoch != self._epoch or rank != entry.rank:
            return None
        if progress.finish_reason == "no_room":  # its text is a message, not a part of what the client has
            del self._entries[progress.request_id]
            return progress
        tokens = progress.tokens[max(0, len(entry.tokens) - entry.told_tokens) :]
        text = progress.text[max(0, entry.num_characters - entry.told_characters) :]
        entry.told_tokens += len(progress.tokens)
        entry.told_characters += len(progress.text)
        entry.tokens += tokens
        entry.num_characters += len(text)
        entry.stats = progress.stats.after(entry.before)
        if progress.finish_reason:
            del self._entries[progress.request_id]
        elif not tokens and not text:
            return None
        logprobs = progress.logprobs and progress.logprobs[len(progress.tokens) - len(tokens) :]
        trace = progress.trace and progress.trace._replace(step=entry.stats.steps - 1)
        return replace(progress, tokens=tokens, text=text, logprobs=logprobs, stats=entry.stats, trace=trace)

    def drop_all(self) -> None:
        """Forgets all requests, as no rank is left to continue them."""
        self._entries.clear()
