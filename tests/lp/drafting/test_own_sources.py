"""Draft sources that a user has written in Python: they draft, change no token, and their mistakes have a message."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import pytest
from transformers import PreTrainedModel

from lp import Auto, Engine
from lp.drafting import simple
from lp.drafting.ngrams import Proposals, last_token
from lp.drafting.simple import Observation, SequenceStart
from lp.platform.library import library, python_alone
from tests.models import EOS, VOCAB_SIZE, generate_greedily

PROMPT, NUM_NEW = "def add(a, b):\n    return", 40
ALONE = Auto(window_drafts=False, suffix_drafts=False, recycled_drafts=False)


class Known:
    """Proposes what follows a token in a text that is known: its first occurrence counts."""

    name = "known"
    text: tuple[int, ...] = ()

    @staticmethod
    def kinds(settings: Auto) -> list[float]:
        return [0.9, 0.2]

    @classmethod
    def begin(cls, start: SequenceStart) -> Any:
        return cls()

    def propose(self, path: int, position: int) -> Proposals:
        place = position + 1
        known = self.text[place : place + 1]
        return [(0, list(known))] if known and self.text[position] == last_token(path) else []

    def learn(self, observation: Observation) -> None:
        """The text stays as it is."""


@pytest.fixture(params=[True, False], ids=["with a compiler", "without a compiler"])
def engine(request: pytest.FixtureRequest, llama: Engine, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    """A new engine with the source, whose text is what the model is going to write."""
    if request.param and library() is None:
        pytest.skip("there is no C++ compiler")
    monkeypatch.setattr(simple, "OWN_SOURCES", (Known,))
    with nullcontext() if request.param else python_alone():
        yield Engine(llama.checkpoint)


@pytest.fixture
def expected(llama: Engine, llama_reference: PreTrainedModel) -> list[int]:
    return generate_greedily(llama_reference, llama.request_builder.encode(PROMPT), NUM_NEW, [EOS])


@pytest.mark.parametrize("decode", [ALONE, Auto()], ids=["alone", "with the others"])
def test_a_source_drafts_is_accepted_and_changes_no_token(
    decode: Auto, engine: Engine, expected: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt = engine.request_builder.encode(PROMPT)
    monkeypatch.setattr(Known, "text", (*prompt, *expected))
    found = engine.generate(PROMPT, max_new_tokens=NUM_NEW, decode=decode)
    assert found.token_ids == expected
    assert found.stats.accepted["known"] > 0 and found.stats.tokens_per_step > 3
    monkeypatch.setattr(Known, "text", (*prompt, *((token + 1) % VOCAB_SIZE for token in expected)))
    assert engine.generate(PROMPT, max_new_tokens=NUM_NEW, decode=decode).token_ids == expected


def test_a_source_that_begins_with_nothing_is_left_out(
    engine: Engine, expected: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Known, "begin", lambda start: None)
    found = engine.generate(PROMPT, max_new_tokens=NUM_NEW, decode=ALONE)
    assert found.token_ids == expected and not found.stats.proposed


@pytest.mark.parametrize(
    ("wrong", "names"),
    [
        ({"learn": None}, ["Wrong", "learn"]),
        ({"name": "suffix"}, ["Wrong", "'suffix'"]),
        ({"name": "known"}, ["Wrong", "'known'"]),
        ({"kinds": lambda settings: [0.5, 1.5]}, ["'wrong'", "1.5"]),
        ({"kinds": lambda settings: []}, ["'wrong'"]),
    ],
    ids=["a part is missing", "a built-in name", "a name given twice", "no probability", "no kinds"],
)
def test_a_source_that_cannot_be_used_is_named(
    wrong: dict[str, Any], names: list[str], llama: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = {key: value for key, value in vars(Known).items() if not key.startswith("__")} | {"name": "wrong"} | wrong
    source = type("Wrong", (), {key: value for key, value in parts.items() if value is not None})
    monkeypatch.setattr(simple, "OWN_SOURCES", (Known, source))
    with pytest.raises(ValueError) as error:
        Engine(llama.checkpoint)
    assert [name for name in names if name not in str(error.value)] == []


@pytest.mark.parametrize(
    ("proposals", "names"),
    [
        ([(2, [5])], ["'known'", "2", "0 to 1"]),
        ([(1, [5, 6])], ["'known'", "1", "0 to 1"]),
        ([(-1, [5])], ["'known'", "-1"]),
        ([(0, [VOCAB_SIZE])], ["'known'", f"token {VOCAB_SIZE}", f"0 to {VOCAB_SIZE - 1}"]),
        ([(0, [-1])], ["'known'", "token -1"]),
    ],
)
def test_a_kind_or_a_token_that_does_not_exist_is_named(
    proposals: Proposals, names: list[str], engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Known, "propose", lambda self, path, position: proposals)
    with pytest.raises(ValueError) as error:
        engine.generate(PROMPT, max_new_tokens=NUM_NEW, decode=ALONE)
    assert [name for name in names if name not in str(error.value)] == []


def test_an_error_of_the_source_itself_reaches_the_caller(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: Known, path: int, position: int) -> Proposals:
        raise ZeroDivisionError("in the user's code")

    monkeypatch.setattr(Known, "propose", fail)
    with pytest.raises(ZeroDivisionError, match="in the user's code"):
        engine.generate(PROMPT, max_new_tokens=NUM_NEW, decode=ALONE)
