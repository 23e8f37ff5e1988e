"""Settings of decode=medusa: bad values are refused by name, and typical acceptance must be asked for."""

from __future__ import annotations

from typing import Any

import pytest

from lp import DecodeLimits, Engine, Medusa
from lp.methods.registry import from_dict


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"verify": "typical"}, "decode.verify=typical is lossy.* set decode.exact=false, or decode.verify=exact"),
        ({"verify": "typical", "exact": True}, "decode.exact=true demands"),
        ({"verify": "often"}, "decode.verify=often must be exact, or typical, which is lossy"),
        ({"epsilon": 0.0}, "decode.epsilon=0 must be above 0"),
        ({"delta": 1.5}, "decode.delta=1.5 must be above 0 and at most 1"),
        ({"delta": float("nan")}, "decode.delta=nan"),
        ({"max_rows": 0}, "decode.max_rows=0 is out of range for medusa"),
        ({"candidates": 65}, "decode.candidates=65 is out of range for medusa: it must be from 1 to 64"),
        ({"window": 3}, "decode.window is not a setting of medusa"),
        ({"exact": 1}, "decode.exact must be bool"),
    ],
)
def test_bad_values_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        from_dict({"method": "medusa", **values}).check(DecodeLimits())


def test_typical_acceptance_is_used_only_if_asked_for() -> None:
    assert not Medusa().is_lossy and Medusa().exact
    lossy = Medusa(verify="typical", exact=False)
    lossy.check(DecodeLimits())
    assert lossy.is_lossy and from_dict(lossy.to_dict()) == lossy


def test_rows_of_a_step() -> None:
    assert Medusa(max_rows=24).most_rows() == 24 and Medusa(max_rows=24).row_bounds().least == 1
    assert Medusa(max_rows=24).most_rows(has_grammar=True) > 24


def test_without_heads_the_method_is_refused_with_the_mend(llama: Engine) -> None:
    with pytest.raises(ValueError, match=r"decode=medusa needs heads, and none are loaded .* model.heads=FOLDER"):
        llama.request_builder.build([5, 6], Medusa())
