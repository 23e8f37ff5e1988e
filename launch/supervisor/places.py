"""Where ranks run, and what is told of them to whoever asks for the state of a group."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from launch.supervisor.membership import Slot


@dataclass
class Place:
    """Where a rank runs, as it said itself; None where it has not said it yet."""

    host: str | None = None
    pid: int | None = None
    device: str | None = None


def describe_ranks(slots: Iterable[Slot], places: Mapping[int, Place], now: float) -> list[dict[str, Any]]:
    """What Backend.status says of the ranks."""
    return [
        {
            "rank": slot.rank,
            **asdict(places.get(slot.rank, Place())),
            "state": slot.state.value,
            "last_sign_s": round(now - slot.last_sign, 3),
        }
        for slot in slots
    ]
