"""Real ranks go from one epoch to the next: a rank dies at any moment, one that never comes is not waited for."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest
from torch.distributed import TCPStore

from lp import Autoregressive, Engine, Lookahead, Sampling, Stopping
from lp.drafting.answer_index import write_index
from lp.methods.auto.method import Auto
from lp.request import DecodingMethod, Request
from lp.runner.single_device import SingleDevice
from lp.step_cost import StepTimes
from parallel.errors import EpochOver, RankLost
from parallel.groups.epoch import Epoch, RunningRequest, joined, resume
from parallel.mesh import ExchangeKind, Mesh, ParallelSettings
from parallel.runners.lookahead import LookaheadParallel
from tests.models import VOCAB_SIZE
from tests.parallel.ranks import run_ranks, run_ranks_to_end
from tests.slow import slow_except

NUM_TOKENS = 40
LIMIT_S = 60.0  # of a wait for a rank
PROMPTS = [[5, 9, 5, 9, 5], [(3 + 7 * i) % 41 + 2 for i in range(70)]]
GREEDY = Sampling(temperature=0.0, seed=3)
SAMPLED = Sampling(temperature=0.9, top_p=0.95, repetition_penalty=1.1, seed=11)


Kinds = list[tuple[DecodingMethod, Sampling]]
KINDS: Kinds = [(Lookahead(5, 4, 5), GREEDY), (Auto(rows=20), SAMPLED)]
# All ranks but one rest in most steps of these, by the step times below.
RESTING: Kinds = [(Autoregressive(), GREEDY), (Auto(), SAMPLED)]
TIMES = StepTimes((1, 64), (0.012, 0.020), 3, StepTimes((1, 64), (0.010, 0.040)))


def requests_of(engine: Engine, kinds: Kinds) -> list[Request]:
    stop = Stopping(NUM_TOKENS, ignore_eos=True)
    return [
        engine.request_builder.build(prompt, decode, sampling, stop, request_id=str(number))
        for number, (prompt, (decode, sampling)) in enumerate(zip(PROMPTS, kinds, strict=True))
    ]


def settings_of(exchange: str, timeout_s: float = LIMIT_S) -> ParallelSettings:
    return ParallelSettings(exchange=ExchangeKind(exchange), timeout_s=timeout_s)


def client(mesh: Mesh) -> TCPStore:
    return TCPStore("127.0.0.1", int(os.environ["MASTER_PORT"]), is_master=False, wait_for_workers=False)


def lose_one(mesh: Mesh, channel, exchange: str, folder: str, victim: int, num_steps: int, kinds: Kinds):
    """All tokens of both requests, from the ranks that are left after the victim has died in a step."""
    engine = Engine.from_pretrained(folder, device="cpu")
    assert isinstance(engine.runner, SingleDevice)
    alone, store, tokens = engine.runner, client(mesh), {"0": [], "1": []}
    running = [RunningRequest(request, []) for request in requests_of(engine, kinds)]
    survivors = [rank for rank in range(mesh.num_ranks) if rank != victim]
    lost = threading.Event()  # what the front end would tell
    for epoch in (Epoch(1, list(range(mesh.num_ranks)), running=running), Epoch(2, survivors, running=running)):
        is_over = lost.is_set if epoch.number == 1 else lambda: False
        try:
            with joined(epoch, mesh.rank, mesh, settings_of(exchange), store, is_over) as channel:
                runner = LookaheadParallel(alone, channel) if channel.num_ranks > 1 else alone
                for output in resume(engine, runner, channel, epoch, TIMES):
                    tokens[output.request_id] = output.tokens
                for number in range(10_000):
                    if engine.is_idle:
                        return tokens
                    if mesh.rank == victim and number == num_steps:
                        os.kill(os.getpid(), signal.SIGKILL)
                    for output in engine.step():
                        tokens[output.request_id] = tokens[output.request_id] + output.tokens
        except RankLost:
            lost.set()


def check_survivors(
    kinds: Kinds,
    exchange: str,
    num_ranks: int,
    victim: int,
    num_steps: int,
    checkpoint_folder: Callable[[str], Path],
    architecture: str = "llama",
) -> None:
    folder = str(checkpoint_folder(architecture))
    alone = Engine.from_pretrained(folder, device="cpu")
    expected = {}
    for request in requests_of(alone, kinds):
        alone.add_request(request)
        expected[request.id] = []
    while not alone.is_idle:
        for output in alone.step():
            expected[output.request_id] += output.tokens
    arguments = (exchange, folder, victim, num_steps, kinds)
    outcomes = run_ranks_to_end(lose_one, num_ranks, *arguments, exchange=exchange, doomed=(victim,))
    for rank, outcome in enumerate(outcomes):
        assert rank == victim or (outcome.error is None and outcome.result == expected), (rank, outcome)


@pytest.mark.parametrize("exchange", slow_except(["shm", "gloo"], "shm"))
@pytest.mark.parametrize(
    ("num_ranks", "victim", "num_steps"),
    slow_except([(2, 0, 7), (2, 1, 0), (3, 1, 4), (3, 0, 11)], (2, 0, 7), (3, 1, 4)),
)
def test_survivors_end_all_requests_with_the_same_tokens(
    exchange: str, num_ranks: int, victim: int, num_steps: int, checkpoint_folder: Callable[[str], Path]
) -> None:
    check_survivors(KINDS, exchange, num_ranks, victim, num_steps, checkpoint_folder)


@pytest.mark.parametrize("exchange", slow_except(["shm", "gloo"], "gloo"))
@pytest.mark.parametrize(
    ("num_ranks", "victim", "num_steps"),
    slow_except([(2, 1, 20), (2, 0, 20), (3, 1, 25), (3, 0, 9)], (2, 1, 20), (3, 0, 9)),
)
def test_a_rank_may_be_lost_while_it_or_another_rests(
    exchange: str, num_ranks: int, victim: int, num_steps: int, checkpoint_folder: Callable[[str], Path]
) -> None:
    """If rank 0 is lost, the others have computed nothing but the prompt, or not even that."""
    check_survivors(RESTING, exchange, num_ranks, victim, num_steps, checkpoint_folder)


def give_up_waiting(mesh: Mesh, channel, exchange: str) -> list[int]:
    """What the next epoch's exchange gathered after a wait for a busy rank was given up."""
    store, over = client(mesh), threading.Event()
    first, second = Epoch(1, [0, 1]), Epoch(2, [1, 0])
    with joined(first, mesh.rank, mesh, settings_of(exchange), store, over.is_set) as before:
        before.compare(np.zeros(1, np.int32))
        if mesh.rank == 0:
            threading.Timer(0.3, over.set).start()
            with pytest.raises(EpochOver):
                before.compare(np.zeros(1, np.int32))
            store.set("given up", "1")
        else:  # busy for longer than that, however long it takes
            store.wait(["given up"], timedelta(seconds=LIMIT_S))
    with joined(second, mesh.rank, mesh, settings_of(exchange), store, lambda: False) as after:
        return after.compare(np.full(1, mesh.rank, np.int32)).ravel().tolist()


@pytest.mark.parametrize("exchange", ["shm", "gloo"])
def test_a_wait_is_given_up_as_soon_as_the_epoch_is_over(exchange: str) -> None:
    gathered = run_ranks(give_up_waiting, 2, exchange, exchange=exchange)
    assert gathered == [[1, 0]] * 2, "the place in the exchange is not that among the members"


def wait_for_a_member_that_never_comes(mesh: Mesh, channel, exchange: str) -> bool:
    """Whether the wait was given up; a wait that lasts to its time limit is a lost rank."""
    store, over = client(mesh), threading.Event()
    if mesh.rank == 0:
        threading.Timer(0.3, over.set).start()
        epoch = Epoch(1, [0, 1])
        with pytest.raises(EpochOver), joined(epoch, 0, mesh, settings_of(exchange), store, over.is_set):
            raise AssertionError("the exchange was formed without rank 1")
    return over.is_set()


@pytest.mark.parametrize("exchange", ["shm", "gloo"])
def test_a_member_that_never_comes_is_given_up_as_soon_as_the_epoch_is_over(exchange: str) -> None:
    assert run_ranks(wait_for_a_member_that_never_comes, 2, exchange, exchange=exchange) == [True, False]


def compare_lengths(mesh: Mesh, channel) -> list[list[int]]:
    from parallel.groups.epoch import longest

    plain = Request("a", [2], Autoregressive(), GREEDY, Stopping(9))
    told = Request("b", [2], Autoregressive(), Sampling(temperature=0.0, seed=0, logprobs=1), Stopping(9))
    other = Request("c", [2], Autoregressive(), GREEDY, Stopping(9))
    own = {"a": [7, 8, 9][: mesh.rank + 1], "b": [1, 2, 3, 4], "c": [6, 6] if mesh.rank == 1 else [5, 5, 5]}
    return longest(channel, own, [plain, told, other], [[7], [1, 2], [5]])


def test_the_longest_list_counts_unless_it_contradicts_what_was_delivered_or_has_no_log_probabilities() -> None:
    assert run_ranks(compare_lengths, 3) == [[[7, 8, 9], [1, 2], [5, 5, 5]]] * 3


def resume_with_index(mesh: Mesh, channel, folder: str, indices: list[str]) -> str:
    engine = Engine.from_pretrained(folder, step_times="off", index=indices[mesh.rank])
    try:
        resume(
            engine, LookaheadParallel(SingleDevice(engine.checkpoint.model), channel), channel, Epoch(1, [0, 1]), None
        )
    except ValueError as error:
        return str(error)
    except RankLost:
        return "the other rank has gone"
    return f"index {engine.history.index is not None}"


def test_members_must_have_the_same_index(checkpoint_folder: Callable[[str], Path], tmp_path: Path) -> None:
    """What the epoch before had learnt is forgotten, but its index stays."""
    folder, file = str(checkpoint_folder("llama")), str(tmp_path / "index")
    write_index(Path(file), "test", VOCAB_SIZE, {}, {3: (4, 5)})
    assert run_ranks(resume_with_index, 2, folder, [file, file]) == ["index True"] * 2
    leader, refused = run_ranks(resume_with_index, 2, folder, [file, "off"])
    assert leader == "the other rank has gone" and "another index of answers" in refused and "index=off" in refused
