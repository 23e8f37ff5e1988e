"""A second model on the command line: the text of plain decoding, and one clear line for what cannot be used."""

from __future__ import annotations

import json

import pytest

from tests.launch.conftest import Main


def test_a_second_model_drafts(main: Main, folder: str) -> None:
    texts = []
    drafting = [[f"decode={method}", "draft.layers=1", "decode.rows=6"] for method in ("draft_model", "auto")]
    for draft in (["decode=autoregressive"], *drafting):
        code, out, err = main(f"model.path={folder}", *draft, "prompt=def f(", "max_new_tokens=12", "format=json")
        assert code == 0, err
        texts.append(json.loads(out)["token_ids"])
    assert texts[0] == texts[1] == texts[2]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["decode=draft_model"], "draft.path=FOLDER"),
        (["decode=draft_model", "draft.path=nowhere/at/all"], "draft.path=nowhere/at/all"),
        (["decode=draft_model", "draft.layers=9"], "draft.layers=9 must be fewer than"),
        (["decode=draft_model", "draft.layers=1", "decode.verify=loosely"], "decode.verify=loosely"),
    ],
)
def test_a_second_model_that_cannot_be_used_is_one_line(
    main: Main, folder: str, arguments: list[str], words: str
) -> None:
    code, out, err = main(f"model.path={folder}", "prompt=def f(", *arguments)
    assert (code, out) == (2, "")
    assert words in err.splitlines()[-1] and "Traceback" not in err
