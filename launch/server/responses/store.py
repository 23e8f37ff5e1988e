"""Keeps the last responses, so that a later request may continue one. They are lost with the process."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Stored:
    """A response as its client got it, and the messages of the conversation up to its end, without instructions.

    owner: who may read it; None where the server has no keys. size: about how many bytes it takes.
    """

    response: dict[str, Any]
    messages: list[dict[str, Any]]
    owner: str | None
    size: int


class ResponseStore:
    """The last responses, of a bounded number and size. Those that were used longest ago are dropped first."""

    def __init__(self, most_responses: int, most_bytes: int):
        self.most_responses = most_responses
        self.most_bytes = most_bytes
        self._stored: OrderedDict[str, Stored] = OrderedDict()
        self._size = 0

    def __len__(self) -> int:
        return len(self._stored)

    def add(self, stored: Stored) -> None:
        self._stored[stored.response["id"]] = stored
        self._size += stored.size
        while self._stored and (len(self) > self.most_responses or self._size > self.most_bytes):
            _, dropped = self._stored.popitem(last=False)
            self._size -= dropped.size

    def get(self, response_id: str, owner: str | None) -> Stored | None:
        """A response of this owner; None if there is none of this id."""
        found = self._stored.get(response_id)
        if found is None or found.owner != owner:
            return None
        self._stored.move_to_end(response_id)
        return found

    def remove(self, response_id: str, owner: str | None) -> bool:
        """Forgets a response; returns whether there was one."""
        if self.get(response_id, owner) is None:
            return False
        self._size -= self._stored.pop(response_id).size
        return True
