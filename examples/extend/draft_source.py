"""A draft source of one's own: phrases that texts often contain, such as a letter's closing words or a licence's head.

    python -m examples.extend.draft_source

A draft source only proposes. The model decides, so the text is the same with it and without it.
"""

from __future__ import annotations

from lp import Auto, Engine
from lp.drafting import simple
from lp.drafting.ngrams import FOLLOWERS, ContextIndex, context_of
from lp.drafting.simple import Observation, SequenceStart

LENGTHS, CAPACITY = (1, 2, 3), 100_000


class Phrases(ContextIndex):
    """Proposes what follows the last one, two or three tokens in one of the phrases. phrases: as token ids."""

    name = "phrases"
    phrases: tuple[list[int], ...] = ()

    @staticmethod
    def kinds(settings: Auto) -> list[float]:
        """What candidates of each kind are assumed to be worth at first: a kind is a length of match and a rank."""
        return [0.2 * length * 0.3**rank for length in LENGTHS for rank in range(FOLLOWERS)]

    @classmethod
    def begin(cls, start: SequenceStart) -> Phrases:
        index = cls(LENGTHS, CAPACITY)
        for phrase in cls.phrases:
            index.add_text(context_of(phrase[:1]), phrase[1:])
        return index

    def learn(self, observation: Observation) -> None:
        """The phrases stay as they are."""


def main(path: str = "demo/python-11m") -> tuple[list[int], list[int], float, float]:
    """Decodes the same prompt without and with the source. Returns both texts' tokens, and their tokens per step."""
    prompt = "import unittest\n\n\nclass TestSum(unittest.TestCase):\n"
    first = Engine.from_pretrained(path, step_times="off")
    plain = first.generate(prompt, max_new_tokens=48)
    simple.OWN_SOURCES = (Phrases,)  # before the engine is made
    engine = Engine(first.checkpoint)
    Phrases.phrases = (plain.token_ids,)  # in earnest: your own texts, tokenized
    drafted = engine.generate(prompt, max_new_tokens=48)
    print(
        f"{plain.stats.tokens_per_step:.2f} tokens per step without, {drafted.stats.tokens_per_step:.2f} with phrases"
    )
    return plain.token_ids, drafted.token_ids, plain.stats.tokens_per_step, drafted.stats.tokens_per_step


if __name__ == "__main__":
    main()
