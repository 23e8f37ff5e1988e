"""All decoding methods by their names. To add one, write its file and add a line to METHODS."""

from __future__ import annotations

import dataclasses
from typing import Any, get_args, get_type_hints

from lp.methods.auto.method import Auto
from lp.methods.autoregressive import Autoregressive
from lp.methods.beam import Beam
from lp.methods.best_of import BestOf
from lp.methods.contrastive import Contrastive
from lp.methods.draft_model.method import DraftModel
from lp.methods.jacobi import Jacobi
from lp.methods.lookahead import Lookahead
from lp.methods.medusa import Medusa
from lp.methods.prompt_lookup import PromptLookup
from lp.request import DecodingMethod

METHODS: dict[str, type[DecodingMethod]] = {
    kind.method: kind
    for kind in (
        Auto,
        Autoregressive,
        Jacobi,
        PromptLookup,
        Lookahead,
        DraftModel,
        Medusa,
        Beam,
        Contrastive,
        BestOf,
    )
}
DEFAULT = Auto
# What the speed of others is compared with.
BASELINE = Autoregressive


def from_dict(values: dict[str, Any], defaults: DecodingMethod | None = None) -> DecodingMethod:
    """Makes settings from JSON values; those left out come from `defaults` if that has the same method.

    Raises ValueError for an unknown method, an unknown key or a value of the wrong type.
    """
    method = values.get("method", (defaults or DEFAULT).method)
    if not isinstance(method, str) or method not in METHODS:
        raise ValueError(f"decode method {method!r} is unknown; it is one of {', '.join(METHODS)}")
    kind = METHODS[method]
    base = defaults if isinstance(defaults, kind) else kind()
    given = {key: value for key, value in values.items() if key != "method"}
    for key, value in given.items():
        if key not in (names := [field.name for field in dataclasses.fields(kind)]):
            raise ValueError(f"decode.{key} is not a setting of {method}; it has {', '.join(names) or 'none'}")
        if not _fits(value, hint := get_type_hints(kind)[key]):
            raise ValueError(f"decode.{key} must be {getattr(hint, '__name__', hint)}, not {value!r}")
    return dataclasses.replace(base, **given)


def _fits(value: Any, hint: Any) -> bool:
    """Whether a value is of a field's type. True and False are no numbers."""
    return type(value) in (get_args(hint) or (hint,)) or (hint is float and type(value) is int)
