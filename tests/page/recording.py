"""Chunks of a stream with traces, in the format of docs/usage.md, for a text that is given: what a server could send.

Trees are made up, but such that everything that the page shows occurs: accepted paths of several lengths, branches, a
window, two ranks, several sources.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

TEXT = """Here is a function for that:

```python
def fibonacci(n):
    a, b = 0, 1
    for _ in range(n):
        a, b = b, a + b
    return a
```

It keeps **two numbers** and moves both along:

1. `a` is the current number.
2. `b` is the *next* one.

Each step costs one addition, so the whole takes time in the order of n."""
HOSTILE = '<img src=x onerror="document.title=1"> <script>document.title = "taken"</script> **bold** [a](javascript:1)'
CURVE = [[1, 9.8], [8, 11.2], [16, 14.0], [32, 21.5], [64, 40.2], [128, 79.0]]
ACCEPTED = (0, 2, 1, 4, 0, 3, 1, 5, 2)  # tokens that the steps accept, again and again
STEP_MS = 12.0


class Vocabulary:
    """Ids of tokens, given out as they are met."""

    def __init__(self) -> None:
        self.texts: list[str] = [""]

    def split(self, text: str) -> list[int]:
        return [self.id_of(token) for token in re.findall(r" ?\w+|\n+ *| ?[^\w\s]+| +", text)]

    def id_of(self, token: str) -> int:
        if token not in self.texts:
            self.texts.append(token)
        return self.texts.index(token)


def steps(text: str, method: str, vocabulary: Vocabulary) -> Iterator[tuple[str, dict[str, Any]]]:
    """The steps that write a text: what each adds, and its trace."""
    tokens = vocabulary.split(text)
    done = number = 0
    while done < len(tokens):
        wanted = 0 if method == "autoregressive" else ACCEPTED[number % len(ACCEPTED)]
        emitted = tokens[done : done + wanted + 1]
        last = tokens[done - 1] if done else 0
        yield "".join(vocabulary.texts[token] for token in emitted), _trace(number, last, emitted, tokens, method)
        done += len(emitted)
        number += 1


def _trace(number: int, last: int, emitted: list[int], tokens: list[int], method: str) -> dict[str, Any]:
    nodes = [(last, -1, "r", 0)]
    accepted = []
    if method != "autoregressive":
        for token in emitted[:-1]:
            accepted.append(len(nodes))
            nodes.append((token, accepted[-2] if len(accepted) > 1 else 0, "p", 0))
        wrong = iter(tokens[(7 * number) % len(tokens) :] + tokens)
        for count in range(6 + number % 5):  # branches that fail
            nodes.append((next(wrong), count * 5 % len(nodes), "pna"[count % 3], count % 2))
        parent = 0
        for _ in range(5):  # the window's first level, a chain, and what hangs from it
            nodes.append((next(wrong), parent, "w", 1))
            parent = len(nodes) - 1
            nodes.append((next(wrong), parent, "w", 1))
    return {
        "step": number,
        "tokens": [node[0] for node in nodes],
        "parents": [node[1] for node in nodes],
        "sources": "".join(node[2] for node in nodes),
        "ranks": "".join(str(node[3]) for node in nodes),
        "accepted": accepted,
        "emitted": emitted,
        "omitted": 0,
        "rows": max(1, sum(node[3] == 0 for node in nodes)),
        "sequences": 1,
        "step_ms": STEP_MS * (1 + 0.02 * len(nodes)) + number * 7 % 5 / 3,
        "expected_ms": STEP_MS * (1 + 0.02 * len(nodes)),
        "window": [5, 2] if method != "autoregressive" else None,
        "pool": 20 + 3 * number if method != "autoregressive" else None,
    }


def drafted_ahead(trace: dict[str, Any]) -> dict[str, Any]:
    """The trace of a step that rank 0 computed while rank 1 drafted for two ends, the second of which came true."""
    end = trace["accepted"][-1] if trace["accepted"] else 0
    ends = [[1, 0, trace["tokens"][-1]], [1, end, trace["emitted"][-1]]]
    return {**trace, "ranks": "0" * len(trace["ranks"]), "drafting": "1", "drafted_for": ends, "came_true": 1}
