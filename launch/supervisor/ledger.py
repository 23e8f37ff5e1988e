"""What a front end knows of the requests in its group: enough to continue them, whichever ranks are lost.

After a loss, ranks may tell the same tokens again; what was delivered once is not delivered a second time. Knows
nothing of how ranks are reached.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from lp.request import Progress, Request
from lp.statistics import Statistics
from parallel.group.commands import Cancel, Command, Submit
from parallel.group.epoch import RunningRequest


@dataclass
class _Entry:
    """A running request.

    tokens, num_characters: what was delivered to the client. told_tokens, told_characters: how much the epoch's leader
    has told, which begins again with the first token. before: what the request cost in earlier epochs.
    """

    request: Request
    tokens: list[int] = field(default_factory=list)
    num_characters: int = 0
    told_tokens: int = 0
    told_characters: int = 0
    stats: Statistics = field(default_factory=Statistics)
    before: Statistics = field(default_factory=Statistics)
    is_cancelled: bool = False


class Ledger:
    """The running requests by id, from the command that submits each to the progress that ends it."""

    def __init__(self) -> None:
        self._entries: dict[str, _Entry] = {}
        self._epoch = 0

    def note(self, command: Command) -> None:
        """Notes a command on its way to the ranks."""
        match command:
            case Submit(request):
                stats = Statistics(prompt_tokens=len(request.prompt))
                self._entries[request.id] = _Entry(request, stats=stats, before=stats)
            case Cancel(request_id) if entry := self._entries.get(request_id):
                entry.is_cancelled = True

    def begin(self, epoch: int) -> list[RunningRequest]:
        """Begins an epoch: only what its leader tells counts from now on. Returns what the leader must know."""
        self._epoch = epoch
        for entry in self._entries.values():
            entry.told_tokens = entry.told_characters = 0
            entry.before = entry.stats
        return [RunningRequest(entry.request, [*entry.tokens]) for entry in self._entries.values()]

    def end_cancelled(self) -> list[Progress]:
        """Ends the cancelled requests whose end no rank has told. For the time when no rank can tell it."""
        ended = [request_id for request_id, entry in self._entries.items() if entry.is_cancelled]
        return [Progress(name, [], "", None, "cancelled", self._entries.pop(name).stats) for name in ended]

    def take(self, epoch: int, progress: Progress) -> Progress | None:
        """The new part of what a leader tells; None if nothing is new, or if the leader's epoch is over."""
        entry = self._entries.get(progress.request_id)
        if entry is None or epoch != self._epoch:
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
        return replace(progress, tokens=tokens, text=text, logprobs=logprobs, stats=entry.stats)

    def drop_all(self) -> None:
        """Forgets all requests, as no rank is left to continue them."""
        self._entries.clear()
