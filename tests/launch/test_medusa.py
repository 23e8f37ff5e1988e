"""decode=medusa on the command line: what it prints, what it calls lossy, and how it refuses bad input."""

from __future__ import annotations

import json
import re

import pytest
import torch

from launch.config.reference import choices_of, settings_of
from lp.model.heads.files import save_heads
from lp.model.heads.medusa import HeadsInfo, MedusaHeads
from tests.launch.conftest import Main
from tests.models import VOCAB_SIZE

LOSSY = ("decode.verify=typical", "decode.exact=false")


@pytest.fixture(scope="module")
def heads(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Folders of heads: for the model, and for two others."""
    made = tmp_path_factory.mktemp("heads")
    torch.manual_seed(0)
    for name, hidden_size, vocab_size in (("own", 32, VOCAB_SIZE), ("wider", 48, VOCAB_SIZE), ("larger", 32, 999)):
        save_heads(MedusaHeads(HeadsInfo(hidden_size, vocab_size, 2, 1, False)), made / name)
    return {name: f"model.heads={made / name}" for name in ("own", "wider", "larger")}


def test_the_text_is_that_of_plain_decoding(main: Main, folder: str, heads: dict[str, str]) -> None:
    asked = (f"model.path={folder}", "prompt=def add(", "max_new_tokens=12", "format=json", "sampling.seed=3")
    records = []
    for decode in (("decode=autoregressive",), ("decode=medusa", heads["own"])):
        code, out, err = main(*asked, *decode, "sampling.temperature=0.8")
        assert code == 0 and "lossy" not in out + err
        records.append(json.loads(out))
    assert records[0]["token_ids"] == records[1]["token_ids"] and records[1]["decode"] == "medusa"


def test_typical_acceptance_is_named_lossy(main: Main, folder: str, heads: dict[str, str]) -> None:
    asked = (f"model.path={folder}", "prompt=def add(", "max_new_tokens=6", "decode=medusa", heads["own"], *LOSSY)
    code, out, err = main(*asked, "format=json")
    assert code == 0 and json.loads(out)["lossy"] == "typical"
    assert "decode.verify=typical is lossy: texts are not the model's own" in err
    code, _, err = main(*asked)
    assert code == 0 and "lossy (typical): not the model's own text" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("own", "decode.verify=typical"), "decode.verify=typical is lossy.*decode.exact=false"),
        (("own", "decode.verify=typical", "decode.exact=true"), "decode.exact=true demands the model's own"),
        (("own", "decode.verify=rarely"), "decode.verify=rarely must be exact, or typical, which is lossy"),
        (("own", "decode.delta=0"), "decode.delta=0 must be above 0 and at most 1"),
        (("wider",), "a hidden size of 48 and a vocabulary of 300, but the model has a hidden size of 32"),
        (("larger",), "a vocabulary of 999, but the model has a hidden size of 32 and a vocabulary of 300"),
        (("model.heads=off",), "decode=medusa needs heads, and none are loaded"),
        (("model.heads=nowhere",), "model.heads='nowhere': config.json cannot be read"),
    ],
)
def test_bad_input_is_one_clear_message(
    main: Main, folder: str, heads: dict[str, str], arguments: tuple[str, ...], message: str
) -> None:
    given = [heads.get(one, one) for one in arguments]
    code, out, err = main(f"model.path={folder}", "prompt=x", "decode=medusa", *given)
    (error,) = [line for line in err.splitlines() if "error" in line.lower()]
    assert code not in (0, None) and not out
    assert re.search(message, error), err


def test_help_says_lossy_where_the_setting_is_described() -> None:
    described = {one.key: one.meaning for one in settings_of("generate") if one.method == "medusa"}
    assert described.keys() >= {"decode.max_rows", "decode.candidates", "decode.exact"}
    for name in ("verify", "epsilon", "delta"):
        assert "lossy" in described[f"decode.{name}"]
    assert "lossy" in choices_of("generate")["decode"]["medusa"]
