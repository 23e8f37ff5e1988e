"""Shows the fields and arguments that a docstring describes as a list.

mkdocstrings loads this as an extension of griffe. Docstrings of this project describe names within paragraphs.
"""

from __future__ import annotations

from typing import Any

import griffe

from launch.config.reference import divide


class DescribedNames(griffe.Extension):
    """Turns descriptions of names into a list in Markdown."""

    def on_class(self, *, cls: griffe.Class, loader: Any, **kwargs: Any) -> None:
        _list_names(cls, [name for name, member in cls.members.items() if not name.startswith("_")])
        for member in cls.members.values():
            if isinstance(member, griffe.Function):
                _list_names(member, [one.name for one in member.parameters])


def _list_names(shown: griffe.Class | griffe.Function, names: list[str]) -> None:
    if shown.docstring is None:
        return
    text, described = divide(shown.docstring.value, names)
    if described:
        items = [f"- **{', '.join(f'`{name}`' for name in group)}**: {meaning}" for group, meaning in described]
        shown.docstring.value = "\n".join([text, "", *items]).strip()
