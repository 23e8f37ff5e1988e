"""Which tokens would repeat an n-gram, as transformers' NoRepeatNGramLogitsProcessor has it, without its search.

The n-grams of a growing sequence are noted once. Those of a tree's paths are few, and are looked at in each step.
"""

from __future__ import annotations

from collections.abc import Sequence

from lp.tree import PREFIX, TokenTree


class NGrams:
    """The n-grams of one sequence. size: n, at least 1."""

    def __init__(self, size: int):
        self._num_before = size - 1
        # The tokens that have come after n - 1 others, in the order in which they first did.
        self._after: dict[tuple[int, ...], dict[int, None]] = {}

    def note(self, tokens: Sequence[int], first: int) -> None:
        """Notes the n-grams that end at this place of the sequence or behind it."""
        before = self._num_before
        for place in range(max(first, before), len(tokens)):
            self._after.setdefault(tuple(tokens[place - before : place]), {})[tokens[place]] = None

    def banned(self, tree: TokenTree, tokens: Sequence[int]) -> list[list[int]]:
        """Returns for each row the tokens that would repeat an n-gram of its path. tokens: the sequence, whose last
        token is the tree's root.
        """
        last = tokens[len(tokens) - self._num_before :] if self._num_before < len(tokens) else list(tokens)
        paths: list[list[int]] = []  # the last tokens of the sequence, then those below the root
        found = []
        for token, parent in zip(tree.tokens.tolist(), tree.parents.tolist(), strict=True):
            path = list(last) if parent == PREFIX else [*paths[parent], token]
            paths.append(path)
            found.append(self._banned_after(path, len(last)))
        return found

    def _banned_after(self, path: list[int], num_noted: int) -> list[int]:
        """num_noted: how many of the path's first tokens belong to the sequence."""
        before = self._num_before
        if len(path) < before:
            return []
        key = tuple(path[len(path) - before :])
        known = self._after.get(key, {})
        new = [
            path[place]
            for place in range(max(num_noted, before), len(path))
            if tuple(path[place - before : place]) == key and path[place] not in known
        ]
        return [*known, *dict.fromkeys(new)]
