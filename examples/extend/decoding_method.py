"""A decoding method of one's own, and the loop that every method runs in.

    python -m examples.extend.decoding_method

The method guesses that the text repeats with a fixed period, as tables and poems do: its drafts are the tokens that
came one period ago.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence as Items

from lp.decoder import Decoder
from lp.model.checkpoint import ModelSettings, load
from lp.request import Sequence
from lp.runner.runner import StepInput
from lp.runner.single_device import SingleDevice
from lp.sampling.settings import Sampling
from lp.tree import Accepted, Answers, CountDrafts, Drafted, TokenTree, TreeBuilder, greatest_depth, verify


class PeriodicDecoder(Decoder):
    """A chain of the tokens that came `period` tokens earlier."""

    def __init__(self, period: int):
        self.period = period

    def plan(self, tokens: Items[int], room: int, wanted: int) -> TokenTree:
        builder, row = TreeBuilder(tokens[-1]), 0
        for draft in tokens[len(tokens) - self.period :][: greatest_depth(room, wanted)]:
            row = builder.add(draft, row)
        self.tree = builder.build()
        return self.tree

    def commit(self, tokens: Items[int], answers: Answers) -> tuple[Accepted, CountDrafts]:
        accepted = verify(self.tree, answers.targets)
        drafted = Drafted(Counter(periodic=len(self.tree) - 1), ["periodic"] * len(accepted.drafted))
        return accepted, lambda: drafted

    def fingerprint(self) -> int:
        return self.period


def decode(path: str, decoder: Decoder, prompt: str, num_new: int) -> tuple[list[int], int]:
    """Decodes greedily with a method, in the loop of lp/engine/engine.py. Returns the new tokens and the steps."""
    checkpoint = load(ModelSettings(path))
    tokens = checkpoint.tokenizer(prompt)["input_ids"]
    sequence = Sequence("0", list(tokens), len(tokens), Sampling.greedy())
    runner, num_steps, end = SingleDevice(checkpoint.model), 0, len(tokens) + num_new
    runner.open(sequence)
    while (wanted := end - len(sequence.tokens)) > 0:
        tree = decoder.plan(sequence.tokens, checkpoint.max_length - len(sequence.tokens), wanted)
        runner.start([StepInput.of(sequence, tree)])
        (answers,) = runner.finish()
        accepted, _ = decoder.commit(sequence.tokens, answers)
        sequence.tokens += accepted.tokens
        num_steps += 1
    return sequence.tokens[len(tokens) : end], num_steps


def main(path: str = "demo/python-11m", num_new: int = 48) -> tuple[list[int], int]:
    new, num_steps = decode(path, PeriodicDecoder(8), "x = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,", num_new)
    print(f"{len(new)} tokens in {num_steps} steps")
    return new, num_steps


if __name__ == "__main__":
    main()
