"""Shortens Ray's errors to what a user needs to know."""

from __future__ import annotations

import re


def shorten_ray_error(error: BaseException) -> str:
    """Why an actor died, without Ray's list of common causes; for other errors the last line, which follows any
    traceback.
    """
    text = str(error).strip()
    found = re.search(r"^The actor (?:is dead|died) because (.+?)(?:\. |\.?$)", text, re.MULTILINE)
    return found[1] if found else text.splitlines()[-1].strip()
