"""The API keys of the server: from its settings, a file and the environment, and whether a request has one of them."""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

# Keys, separated by commas or white space.
VARIABLE = "LOOKAHEAD_API_KEYS"


class Keys:
    """Keys that clients may send.

    Only digests are kept. All of them are compared, so the time of an answer tells nothing of a key.
    """

    def __init__(self, keys: Iterable[str]):
        self._digests = [_digest(key) for key in keys]

    def owner_of(self, headers: Mapping[str, str]) -> str | None:
        """A short digest of the key in a request's headers; None if it has no valid key.

        headers: `Authorization: Bearer KEY`, or `X-Api-Key: KEY` as Anthropic's clients send it.
        """
        scheme, _, key = headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer":
            key = headers.get("x-api-key", "")
        given = _digest(key.strip())
        matches = [hmac.compare_digest(given, digest) for digest in self._digests]
        return given.hex()[:16] if any(matches) else None


def read_keys(keys: Iterable[str], file: str | None) -> Keys | None:
    """The keys of the settings, of a file with one key a line (`#` begins a comment), and of LOOKAHEAD_API_KEYS.

    None if there are none: the server is open to all. Raises ValueError for a file that cannot be read or has no key,
    for an empty key and for one that is not ASCII.
    """
    listed = [("server.api_keys", key) for key in keys]
    if file is not None:
        listed += [(file, key) for key in _read(file)]
    listed += [(VARIABLE, key) for key in os.environ.get(VARIABLE, "").replace(",", " ").split()]
    for place, key in listed:
        if not key or not key.isascii() or not key.isprintable():
            raise ValueError(f"{place} holds an empty key or one that is not printable ASCII")
    return Keys(key for _, key in listed) if listed else None


def _read(file: str) -> list[str]:
    try:
        lines = Path(file).expanduser().read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8"
        raise ValueError(f"server.api_keys_file={file} cannot be read: {reason}") from None
    found = [line.strip() for line in lines if line.strip() and not line.strip().startswith("#")]
    if not found:
        raise ValueError(f"server.api_keys_file={file} holds no key; write one a line")
    return found


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()
