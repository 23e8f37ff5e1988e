"""What a front end knows of the requests in its group: enough to go on with them, whoever is lost.

Ranks may tell the same tokens again after a loss; what was delivered once is not delivered a second time. Knows nothing
of how ranks are reached.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from lp.request import Progress
from lp.statistics import Statistics
from parallel.group.loop import Command


@dataclass
class _Entry:
    """A request under way. tokens, num_characters: delivered. told_tokens, told_characters: by the epoch's leader, who
    begins with the first. before: what earlier epochs cost.
    """

    request: dict[str, Any]
    tokens: list[int] = field(default_factory=list)
    num_characters: int = 0
    told_tokens: int = 0
    told_characters: int = 0
    stats: Statistics = field(default_factory=Statistics)
    before: Statistics = field(default_factory=Statistics)
    is_cancelled: bool = False


class Ledger:
    """Requests by id, from the command that submits them to the progress that ends them."""

    def __init__(self) -> None:
        self._entries: dict[str, _Entry] = {}
        self._epoch = 0

    def note(self, command: Command) -> None:
        """Takes a command on its way to the ranks."""
        if "submit" in command:
            request = command["submit"]
            stats = Statistics(prompt_tokens=len(request["prompt"]))
            self._entries[request["id"]] = _Entry(request, stats=stats, before=stats)
        elif entry := self._entries.get(command.get("cancel", "")):
            entry.is_cancelled = True

    def begin(self, epoch: int) -> list[dict[str, Any]]:
        """From now on the leader of this epoch counts; what it must know to go on."""
        self._epoch = epoch
        for entry in self._entries.values():
            entry.told_tokens = entry.told_characters = 0
            entry.before = entry.stats
        return [{"request": entry.request, "tokens": [*entry.tokens]} for entry in self._entries.values()]

    def end_cancelled(self) -> list[Progress]:
        """The ends of requests that were cancelled and whose ranks have not said so; to be asked where they cannot."""
        ended = [request_id for request_id, entry in self._entries.items() if entry.is_cancelled]
        return [Progress(name, [], "", None, "cancelled", self._entries.pop(name).stats) for name in ended]

    def take(self, epoch: int, progress: Progress) -> Progress | None:
        """What is new of what a leader tells; None if nothing is, or if its epoch is over."""
        entry = self._entries.get(progress.request_id)
        if entry is None or epoch != self._epoch:
            return None
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
        """Nobody is left to go on with them."""
        self._entries.clear()
