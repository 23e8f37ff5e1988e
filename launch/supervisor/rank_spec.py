"""What a rank's process is told when it is started. Imports nothing but Python's own modules."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

# The environment variable with the key that a rank shows to the front end, in hexadecimal digits.
KEY_VARIABLE = "LOOKAHEAD_LINK_KEY"


@dataclass(frozen=True)
class RankSpec:
    """A rank's place, and where to find its group.

    settings: RuntimeSettings as JSON values. front_end, store: host and port of each.
    """

    rank: int
    num_ranks: int
    local_rank: int
    num_local_ranks: int
    settings: dict[str, Any]
    front_end: tuple[str, int]
    store: tuple[str, int]

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> RankSpec:
        values = json.loads(text)
        places = {name: (values[name][0], values[name][1]) for name in ("front_end", "store")}
        return RankSpec(**{**values, **places})
