"""Finds where a JSON value ends, character by character. Knows nothing of what the value means."""

from __future__ import annotations

import json


class JsonValue:
    """One JSON value of a growing text.

    text: the value so far. Control characters inside of strings, which models write and JSON forbids, are escaped.
    """

    def __init__(self, first: str):
        """first: the value's first character."""
        self.text = first
        self.is_string = first == '"'
        self.is_object = first == "{"
        self._in_string = self.is_string
        self._escaped = False
        self._depth = int(first in "{[")

    def push(self, char: str) -> tuple[bool, str]:
        """Adds a character. Returns whether the value is over, and what this has added to its text.

        The character that ends a number or a word, such as a comma, is not part of it and adds nothing.
        """
        if self._in_string:
            more = char if char >= " " else json.dumps(char)[1:-1]
            if self._escaped:
                self._escaped = False
            elif char == "\\":
                self._escaped = True
            elif char == '"':
                self._in_string = False
        elif not self._depth and (char in ",]}" or char.isspace()):
            return True, ""
        else:
            more = char
            self._in_string = char == '"'
            self._depth += (char in "{[") - (char in "}]")
        self.text += more
        closes = (char == '"' and self.is_string) or char in "}]"
        return closes and not self._in_string and not self._depth, more
