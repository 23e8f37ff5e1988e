"""Real ranks compute batches of many sequences, however these are shared, with the answers of a single device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from lp import Autoregressive, Engine, Sampling, Stopping
from lp.model.checkpoint import ModelSettings, load
from lp.request import Sequence as TokenSequence
from lp.runner.runner import Runner, StepInput
from lp.runner.single_device import SingleDevice
from lp.tree import NO_ROWS, Answers, TokenTree, TreeBuilder
from parallel.comm.channel import Channel
from parallel.errors import StateDiverged
from parallel.mesh import Mesh
from parallel.runners.copy_cost import NO_COPIES, CopyCost
from parallel.runners.lookahead import LookaheadParallel
from parallel.runners.shares import Shares
from parallel.runners.sharing import Sharing
from tests.parallel.ranks import run_ranks

NUM_TOKENS = 16
NUM_TEXTS = 7
PROMPTS = [[(3 + n + (5 + n) * i) % 41 + 2 for i in range(1 + 13 * n)] for n in range(NUM_TEXTS)]
SAMPLINGS = [
    Sampling(temperature=0.0, seed=3),
    Sampling(temperature=0.9, top_p=0.95, repetition_penalty=1.1, seed=11, logprobs=2),
    Sampling(temperature=0.0, seed=3, logprobs=0),
]


class Text(NamedTuple):
    """What a request yields alone."""

    prompt: list[int]
    sampling: Sampling
    tokens: list[int]
    logprobs: list[float]


class Drawn(Sharing):
    """Draws at random which replicas compute which rows, and who feeds how far besides."""

    def __init__(self, seed: int, copy_cost: CopyCost = NO_COPIES):
        super().__init__(copy_cost)
        self._random = np.random.default_rng(seed)

    def share(self, steps: Sequence[StepInput], numbers: Sequence[Sequence[int]]) -> list[Shares]:
        return [self._shares(step, len(known)) for step, known in zip(steps, numbers, strict=True)]

    def _shares(self, step: StepInput, num_replicas: int) -> Shares:
        random, shares = self._random, Shares()
        taking = random.permutation(num_replicas)[: random.integers(1, num_replicas + 1)].tolist()
        places = random.choice(taking, len(step.tree)).tolist()
        for row, replica in enumerate(places):
            part = set(shares.rows.get(replica, ())) | set(step.tree.path(row))
            shares.rows[replica] = sorted(part)
        for replica in range(num_replicas):
            if replica not in shares.rows and random.random() < 0.5:
                shares.feeds[replica] = int(random.integers(0, step.num_computed + 1))
        return shares


CHEAP = CopyCost(1.0, 0.02, least=2)


class Changing(Sharing):
    """Shares all trees of a batch, or has each computed by one replica, at random."""

    def __init__(self, seed: int, copy_cost: CopyCost = NO_COPIES):
        super().__init__(copy_cost)
        self._random = np.random.default_rng(seed)

    def share(self, steps: Sequence[StepInput], numbers: Sequence[Sequence[int]]) -> list[Shares]:
        self.is_shared = bool(self._random.random() < 0.5)
        return super().share(steps, numbers)


WAYS: dict[str, Callable[[int], Sharing]] = {
    "lp": lambda seed: Sharing(),
    "dp": lambda seed: Sharing(is_dp=True),
    "changing": Changing,
    "changing, copies": lambda seed: Changing(seed, CHEAP),
    "drawn": Drawn,
    "drawn, copies": lambda seed: Drawn(seed, CHEAP),
}


class Stream:
    """One request whose steps are made here: trees of right and wrong drafts, after feeds of any length."""

    def __init__(self, name: str, text: Text):
        self.text = text
        self.sequence = TokenSequence(name, list(text.prompt), len(text.prompt), text.sampling)
        self.num_computed = 0
        self.logprobs: list[float] = []

    @property
    def generated(self) -> list[int]:
        return self.sequence.tokens[self.sequence.prompt_length :]

    @property
    def has_ended(self) -> bool:
        return len(self.generated) >= NUM_TOKENS

    def plan(self, random: np.random.Generator) -> StepInput:
        num_tokens = len(self.sequence.tokens)
        if self.num_computed < num_tokens - 1 and not self.generated and random.random() < 0.8:
            self.num_computed = min(num_tokens - 1, self.num_computed + int(random.integers(1, 30)))
            return StepInput(self.sequence, NO_ROWS, self.num_computed)
        step = StepInput.of(self.sequence, self._tree(random), int(random.integers(3)))
        step.fingerprint = num_tokens
        return step

    def _tree(self, random: np.random.Generator) -> TokenTree:
        coming = self.text.tokens[len(self.generated) :]
        builder = TreeBuilder(self.sequence.tokens[-1])
        for _ in range(int(random.integers(4))):
            row = 0
            for token in coming[: int(random.integers(1, 5))]:
                row = builder.add(token if random.random() < 0.8 else 3, row)
        return builder.build()

    def settle(self, tree: TokenTree, answers: Answers) -> None:
        """Walks down the tree as far as its drafts are right."""
        row: int | None = 0 if len(tree) else None
        while row is not None and not self.has_ended:
            target = int(answers.targets[row])
            assert answers.candidates is None or int(answers.candidates[row, 0]) == target
            if answers.logprobs is not None:
                self.logprobs.append(float(answers.logprobs[row]))
            self.sequence.tokens.append(target)
            row = next((child for child in tree.children[row] if tree.tokens[child] == target), None)


def serve(runner: Runner, texts: list[Text], seed: int) -> list[tuple[list[int], list[float]]]:
    """Tokens and log-probabilities of each text. Requests arrive at any time, wait, and end; some end early."""
    random = np.random.default_rng(seed)
    streams = [Stream(str(number), text) for number, text in enumerate(texts)]
    coming, running = list(streams), []
    while coming or running:
        while coming and (not running or random.random() < 0.3):
            running.append(coming.pop(0))
            runner.open(running[-1].sequence)
        taking = [stream for stream in running if random.random() < 0.8]
        if taking:
            steps = [stream.plan(random) for stream in taking]
            runner.start(steps)
            for stream, step, answers in zip(taking, steps, runner.finish(), strict=True):
                stream.settle(step.tree, answers)
        for stream in [stream for stream in running if stream.has_ended]:
            running.remove(stream)
            runner.close(stream.sequence)
    return [(stream.generated, stream.logprobs) for stream in streams]


def serve_on_ranks(
    mesh: Mesh, channel: Channel, folder: str, texts: list[Text], mode: str, seed: int
) -> tuple[list[tuple[list[int], list[float]]], int, int, int]:
    """What `serve` returns, this rank's rests and the bytes of its caches at the end, and the collectives a batch."""
    alone = SingleDevice(load(ModelSettings(folder, device="cpu")).model, prefill_chunk=16)
    runner = LookaheadParallel(alone, channel, 1, channel.messages, WAYS[mode](seed))
    before, started = channel.traffic.num_collectives, []
    start = runner.start
    runner.start = lambda steps: (started.append(len(steps)), start(steps))[1]  # type: ignore[method-assign]
    served = serve(runner, texts, seed)
    assert channel.traffic.num_collectives - before == len(started) and max(started) > 3
    assert not runner._known, "nothing is left of sequences that have ended"
    assert runner.copying is not None and (runner.copying.num_tokens > 0) == ("copies" in mode)
    return served, runner.num_rests, runner.cache_bytes, len(started)


@pytest.fixture(scope="module")
def texts(llama: Engine) -> list[Text]:
    found = []
    for number, prompt in enumerate(PROMPTS):
        sampling = SAMPLINGS[number % len(SAMPLINGS)]
        stopping = Stopping(NUM_TOKENS + 8, ignore_eos=True)
        done = llama.generate(prompt, decode=Autoregressive(), sampling=sampling, stopping=stopping)
        sampling = llama.request_builder.build(prompt, Autoregressive(), sampling).sampling  # no setting is left open
        found.append(Text(prompt, sampling, done.token_ids, [entry.logprob for entry in done.logprobs or []]))
    return found


@pytest.mark.parametrize(
    ("mode", "num_ranks", "exchange"),
    [
        ("lp", 2, "shm"),
        ("drawn", 3, "shm"),
        ("drawn, copies", 3, "shm"),
        ("changing, copies", 2, "gloo"),
        ("dp", 2, "shm"),
        *(
            pytest.param(mode, num_ranks, exchange, marks=pytest.mark.slow)
            for mode in WAYS
            for num_ranks, exchange in ((2, "shm"), (3, "gloo"), (4, "shm"))
        ),
    ],
)
def test_batches_have_the_answers_of_a_single_device(
    mode: str,
    num_ranks: int,
    exchange: str,
    texts: list[Text],
    checkpoint_folder: Callable[[str], Path],
) -> None:
    arguments = (str(checkpoint_folder("llama")), texts, mode, num_ranks)
    results = run_ranks(serve_on_ranks, num_ranks, *arguments, exchange=exchange, timeout_s=60, limit_s=240)
    for served, num_rests, cache_bytes, num_batches in results:
        for (tokens, logprobs), text in zip(served, texts, strict=True):
            assert tokens == text.tokens[:NUM_TOKENS]
            np.testing.assert_allclose(logprobs, text.logprobs[:NUM_TOKENS], atol=1e-4)
        assert cache_bytes == 0 and num_rests < num_batches


def diverge(mesh: Mesh, channel: Channel, folder: str) -> int:
    """The rank that is named when the second sequence of a batch differs on it."""
    runner = LookaheadParallel(SingleDevice(load(ModelSettings(folder, device="cpu")).model), channel)
    steps = []
    for name in range(3):
        sequence = TokenSequence(str(name), [5, 6], 2, SAMPLINGS[0])
        runner.open(sequence)
        steps.append(StepInput.of(sequence, TreeBuilder(6).build()))
        steps[-1].fingerprint = 7 + (name == 1 and mesh.rank == 1)
    with pytest.raises(StateDiverged) as caught:
        runner.start(steps)
        runner.finish()
    return caught.value.rank


def test_one_fingerprint_stands_for_the_batch(checkpoint_folder: Callable[[str], Path]) -> None:
    assert run_ranks(diverge, 2, str(checkpoint_folder("llama"))) == [1, 1]
