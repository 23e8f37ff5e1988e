"""A prompt that several replicas compute together has the keys and values of one that a single replica computes."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest

from lp import Autoregressive, Engine, Lookahead, Sampling, Stopping
from lp.request import Sequence
from lp.runner.runner import StepInput
from lp.runner.single_device import SingleDevice
from lp.scheduling.settings import SchedulerSettings
from lp.tree import NO_ROWS
from parallel.build import find_messages
from parallel.comm.channel import Channel
from parallel.errors import RankLost
from parallel.mesh import Mesh
from parallel.runners.copy_cost import CopyCost
from parallel.runners.lookahead import LookaheadParallel
from parallel.runners.shares import Shares, Split
from parallel.runners.sharing import Sharing
from tests.parallel.ranks import run_ranks, run_ranks_to_end
from tests.parallel.runners.native import load_native, native
from tests.parallel.runners.test_sharing import sequence, star
from tests.slow import slow_except

GREEDY = Sampling(temperature=0.0, seed=3)
__all__ = ["native"]
PROMPT = [(3 + 7 * i) % 41 + 2 for i in range(230)]
CHEAP = CopyCost(1.0, 0.02, least=4, per_split=2.0)


def test_all_replicas_take_a_part_of_a_prompt_and_its_owner_the_last() -> None:
    fed = StepInput(sequence("fed", 300), NO_ROWS, 90)
    assert Sharing(CHEAP).share([fed], [[0, 0, 0]]) == [
        Shares({}, {0: 90, 1: 30, 2: 60}, Split((1, 2, 0), (0, 30, 60, 90)))
    ]
    fed.num_computed = 180
    assert Sharing(CHEAP).share([fed], [[90, 30, 60]]) == [
        Shares({}, {0: 180, 1: 120, 2: 150}, Split((1, 2, 0), (90, 120, 150, 180)))
    ]
    last = StepInput.of(sequence("fed", 300), star(7))
    assert Sharing(CHEAP).share([last], [[180, 120]]) == [
        Shares({0: range(7)}, {1: 239}, Split((1, 0), (180, 239, 299)))
    ]


def test_a_prompt_is_not_split_where_that_does_not_pay() -> None:
    fed, busy = StepInput(sequence("fed", 300), NO_ROWS, 90), StepInput.of(sequence("busy", 9), star(4))
    for cost in (CHEAP._replace(per_split=44.0), CHEAP._replace(per_token=0.6), CopyCost(1.0, 0.02)):
        assert Sharing(cost).share([fed], [[0, 0]])[0].split is None
    beside = Sharing(CHEAP).share([fed, busy], [[0, 0], [8, 8]])
    assert beside[0].split == Split((1, 0), (0, 45, 90)) and len(beside[1].rows) == 2, "others decode meanwhile"
    fed.num_computed = 6
    assert Sharing(CHEAP).share([fed], [[0, 0]])[0].split is None
    far = StepInput(sequence("far", 9000), NO_ROWS, 8090)
    assert Sharing(CHEAP).share([far], [[8000, 0]])[0].split is None, "one of the two lacks too much"


class Recorded(Sharing):
    """Sharing, and the splits that there were."""

    def __init__(self) -> None:
        super().__init__(CHEAP)
        self.splits: list[Split] = []

    def share(self, steps, numbers):
        all_shares = super().share(steps, numbers)
        self.splits += [shares.split for shares in all_shares if shares.split]
        return all_shares


def runner_of(folder: str, channel: Channel, dtype: str, sharing: Sharing) -> LookaheadParallel:
    alone = SingleDevice(load_native(folder, dtype).model, prefill_chunk=64)
    return LookaheadParallel(alone, channel, messages=find_messages(alone, channel), sharing=sharing)


def feed(mesh: Mesh, channel: Channel, folder: str, dtype: str) -> tuple[bool, int]:
    """Whether each rank has the keys and values that it computes alone, after each chunk; and the number of splits."""
    runner = runner_of(folder, channel, dtype, recorded := Recorded())
    together, alone = (Sequence(name, list(PROMPT), len(PROMPT), GREEDY) for name in ("together", "alone"))
    runner.open(together)
    runner.inner.open(alone)
    is_same = True
    for number, num_computed in enumerate((48, 100, 101, 160, 229)):
        if number == 3 and mesh.rank == 0:
            runner.inner.committed_cache(together).evict()
        runner.launch([StepInput(together, NO_ROWS, num_computed)])()
        runner.inner.launch([StepInput(alone, NO_ROWS, num_computed)])()
        one, other = (runner.inner.committed_cache(each) for each in (together, alone))
        is_same &= one.length > 0 and bool((one.export(0, one.length) == other.export(0, one.length)).all())
    return is_same, len(recorded.splits)


@pytest.mark.parametrize(
    ("num_ranks", "exchange", "dtype"),
    [(2, "shm", "bfloat16"), (3, "gloo", "float32"), pytest.param(4, "shm", "float32", marks=pytest.mark.slow)],
)
@pytest.mark.parametrize("architecture", ["llama", pytest.param("gemma3", marks=pytest.mark.slow)])
def test_keys_and_values_are_those_of_one_replica_to_the_bit(
    architecture: str, num_ranks: int, exchange: str, dtype: str, native: Callable[..., str]
) -> None:
    results = run_ranks(feed, num_ranks, native(architecture, dtype), dtype, exchange=exchange)
    assert results == [(True, 4)] * num_ranks


def generate(mesh: Mesh, channel: Channel, folder: str) -> tuple[list[list[int]], int]:
    """The texts of several requests, first of one alone and then of two more beside it; and the number of splits."""
    checkpoint = load_native(folder, "float32")
    alone = SingleDevice(checkpoint.model, prefill_chunk=64)
    runner = LookaheadParallel(alone, channel, messages=channel.messages, sharing=(recorded := Recorded()))
    engine = Engine(checkpoint, runner, fingerprints=True, scheduler=SchedulerSettings(max_step_rows=40))
    tokens: dict[str, list[int]] = {}
    for number, decode in enumerate((Autoregressive(), Lookahead(3, 3, 3), Autoregressive())):
        stopping = Stopping(20, ignore_eos=True)
        request = engine.request_builder.build(PROMPT[number:], decode, GREEDY, stopping, request_id=str(number))
        engine.add_request(request)
        tokens[request.id] = []
        for _ in range(8 if number == 0 else 2):
            for output in engine.step():
                tokens[output.request_id] += output.tokens
    while not engine.is_idle:
        for output in engine.step():
            tokens[output.request_id] += output.tokens
    return list(tokens.values()), len(recorded.splits)


@pytest.mark.parametrize("num_ranks", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_texts_are_those_of_one_replica(num_ranks: int, native: Callable[..., str], llama: Engine) -> None:
    expected = [
        llama.generate(
            PROMPT[number:], decode=Autoregressive(), sampling=GREEDY, stopping=Stopping(20, ignore_eos=True)
        ).token_ids
        for number in range(3)
    ]
    for texts, num_splits in run_ranks(generate, num_ranks, native("llama")):
        assert texts == expected and num_splits > 0


def die_in_a_split(mesh: Mesh, channel: Channel, folder: str, victim: int) -> tuple[tuple[int, ...], int]:
    """The ranks that are named when one ends between two layers, and the tokens that are cached here then."""
    runner = runner_of(folder, channel, "float32", Recorded())
    sequence = Sequence("together", list(PROMPT), len(PROMPT), GREEDY)
    runner.open(sequence)
    runner.launch([StepInput(sequence, NO_ROWS, 40)])()
    if mesh.rank == victim:
        runner.inner.model.forward_by_layer = lambda *_: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[method-assign]
    with pytest.raises(RankLost) as caught:
        runner.launch([StepInput(sequence, NO_ROWS, 120)])()
    return caught.value.ranks, runner.inner.num_cached(sequence.id, sequence.tokens)


@pytest.mark.parametrize(("exchange", "victim"), slow_except([("shm", 1), ("gloo", 2)], ("shm", 1)))
def test_a_rank_that_is_killed_between_two_layers_is_named_and_nothing_wrong_is_cached(
    exchange: str, victim: int, native: Callable[..., str]
) -> None:
    arguments = (native("llama"), victim)
    outcomes = run_ranks_to_end(die_in_a_split, 3, *arguments, exchange=exchange, doomed=(victim,))
    for rank, outcome in enumerate(outcomes):
        if rank != victim:
            assert outcome.error is None, outcome.error + outcome.stderr
            named, num_cached = outcome.result
            # A replica that waited for the lost one has what it had before; one that did not has its part.
            assert named == (victim,) and num_cached in (40, 66, 93)
