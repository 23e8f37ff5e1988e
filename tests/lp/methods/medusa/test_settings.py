"""Settings of decode=medusa: typical acceptance must be asked for."""

from __future__ import annotations

from lp import DecodeLimits, Medusa
from lp.methods.registry import from_dict


def test_typical_acceptance_is_used_only_if_asked_for() -> None:
    assert not Medusa().is_lossy and Medusa().exact
    lossy = Medusa(verify="typical", exact=False)
    lossy.check(DecodeLimits())
    assert lossy.is_lossy and from_dict(lossy.to_dict()) == lossy


def test_rows_of_a_step() -> None:
    assert Medusa(max_rows=24).most_rows() == 24 and Medusa(max_rows=24).row_bounds().least == 1
    assert Medusa(max_rows=24).most_rows(has_grammar=True) > 24
