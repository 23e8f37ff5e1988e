"""Fields that clients of other servers send: other names of fields that this server has, and those that it ignores."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from difflib import get_close_matches

# By the name of a field, what llama.cpp, Ollama and transformers call it.
OTHER_NAMES = {
    "repetition_penalty": ("repeat_penalty",),
    "no_repeat_ngram": ("no_repeat_ngram_size",),
    "max_tokens": ("n_predict", "num_predict"),
    "guided_grammar": ("grammar",),
    "guided_json": ("json_schema",),
}
# Fields without an effect here, and what to use in their place; empty if nothing is needed.
IGNORED = {
    "reasoning_effort": "use chat_template_kwargs, if the model's chat template has a switch for reasoning",
    "thinking": 'use chat_template_kwargs={"enable_thinking": false}',
    "verbosity": "say in a message how long the answer should be",
    "options": "write its settings into the body itself",
    "typical_p": "use top_p or min_p",
    "tfs_z": "use top_p or min_p",
    "mirostat": "use temperature and min_p",
    "mirostat_tau": "use temperature and min_p",
    "mirostat_eta": "use temperature and min_p",
    "length_penalty": 'it belongs to beam search: decode={"method": "beam", "length_penalty": 1.0}',
    "cache_prompt": "",
    "cache_salt": "",
    "detokenize": "",
    "id_slot": "",
    "keep_alive": "",
    "session_id": "",
    "usage": "",
}
# Of a warning: names, and characters of a name.
MOST_NAMES, LONGEST_NAME = 12, 60


def remedy(name: str, known: Collection[str]) -> str:
    """What to do about a field that has no effect, in brackets; empty if there is nothing to do. known: fields."""
    if name in IGNORED:
        return IGNORED[name] and f" ({IGNORED[name]})"
    near = get_close_matches(name, known, 1, 0.8)
    return f" (did you mean {near[0]}?)" if near else ""


def warning(names: Iterable[str], known: Collection[str]) -> str:
    """One line, in ASCII, that tells a client which of its fields are ignored."""
    (*first,) = names
    named = [_plain(name) + remedy(name, known) for name in first[:MOST_NAMES]]
    more = [f"{len(first) - MOST_NAMES} more"] if len(first) > MOST_NAMES else []
    return f"ignored fields: {', '.join([*named, *more])}"


def _plain(name: str) -> str:
    return re.sub(r"[^!#-\[\]-~]", "?", name[:LONGEST_NAME])
