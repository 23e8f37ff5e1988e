"""Finished sequences outlive epochs: requests begin from them whether ranks share steps or not, and after a loss."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from lp import Autoregressive, Engine, Lookahead, Stopping
from lp.request import Request
from lp.runner.single_device import SingleDevice
from lp.scheduling.prefix_cache import FinishedSequence
from lp.scheduling.settings import PrefixReuse, SchedulerSettings
from parallel.build import share_steps
from parallel.comm.channel import Channel
from parallel.groups.epoch import MOST_LACKING, Epoch, RunningRequest, joined, resume, still_held
from parallel.mesh import Mesh, Mode
from tests.parallel.groups.test_epoch import GREEDY, SAMPLED, client, settings_of
from tests.parallel.ranks import run_ranks

NUM_TOKENS = 12
# Found in an epoch by its number: what a rank serves then, by its number; all of them where steps are shared.
BEGINNINGS = {"first": [(3 + 5 * i) % 41 + 2 for i in range(130)], "second": [(9 + 7 * i) % 43 + 2 for i in range(140)]}


def ask(engine: Engine, name: str, beginning: str, tail: list[int]) -> tuple[list[int], int]:
    """A request's tokens, and how many of its prompt's were not computed."""
    decode = Lookahead(3, 3, 3) if tail else Autoregressive()
    stop = Stopping(NUM_TOKENS, ignore_eos=True)
    request = engine.request_builder.build([*BEGINNINGS[beginning], *tail], decode, GREEDY, stop, request_id=name)
    engine.add_request(request)
    tokens: list[int] = []
    cached = 0
    while not engine.is_idle:
        for output in engine.step():
            tokens, cached = tokens + output.tokens, output.stats.cached_tokens
    return tokens, cached


def serve(mesh: Mesh, channel: Channel, folder: str, mode: Mode) -> dict[str, tuple[list[int], int]]:
    """Two ranks that share steps, then do not, then do again. What each request has yielded on this rank."""
    alone = Engine.from_pretrained(folder, device="cpu", step_times="off")
    assert isinstance(alone.runner, SingleDevice)
    scheduler = SchedulerSettings(prefix_reuse=PrefixReuse.owner)
    engine, runner, store = Engine(alone.checkpoint, alone.runner, scheduler=scheduler), alone.runner, client(mesh)
    engine.fingerprints = True
    found: dict[str, tuple[list[int], int]] = {}
    for number, is_divided in enumerate([False, True, False], start=1):
        epoch = Epoch(number, [0, 1], group_size=1 if is_divided else 2)
        with joined(epoch, mesh.rank, mesh, settings_of("shm"), store, lambda: False) as own:
            resume(engine, share_steps(runner, own, mode), own, epoch, None)
            if is_divided:
                found["divided, first"] = ask(engine, "divided, first", "first", [5, 6])
                if mesh.rank == 1:
                    found["divided, second"] = ask(engine, "divided, second", "second", [])
            else:
                beginning = "first" if number == 1 else "second"
                found[f"{number}"] = ask(engine, f"{number}", beginning, [7])
                found[f"{number}, again"] = ask(engine, f"{number}, again", beginning, [8, 9])
    return found


def test_requests_begin_from_what_earlier_epochs_have_computed(checkpoint_folder: Callable[[str], Path]) -> None:
    folder = str(checkpoint_folder("llama"))
    alone = Engine.from_pretrained(folder, device="cpu", step_times="off")
    tails = {
        "1": [7],
        "1, again": [8, 9],
        "divided, first": [5, 6],
        "divided, second": [],
        "3": [7],
        "3, again": [8, 9],
    }
    firsts = {"1", "1, again", "divided, first"}
    expected = {
        name: ask(alone, name, "first" if name in firsts else "second", tail)[0] for name, tail in tails.items()
    }
    of_ranks = run_ranks(serve, 2, folder, Mode.lp)
    for found in of_ranks:
        assert {name: tokens for name, (tokens, _) in found.items()} == {name: expected[name] for name in found}
        cached = {name: number for name, (_, number) in found.items()}
        assert cached["1"] == 0 and cached["1, again"] >= 130
        assert cached["divided, first"] >= 130, "all ranks hold it, as they share every tree and prompt"
        assert cached["3"] >= 139 and cached["3, again"] >= 140, "rank 1 had computed it alone"
    assert of_ranks[1]["divided, second"][1] == 0 and "divided, second" not in of_ranks[0]


def end_untold(mesh: Mesh, channel: Channel, folder: str, kinds: list[bool]) -> list[int]:
    """A sampled request ends, but its end is lost on its way: it goes on in the last epoch from a few of its tokens.

    kinds: whether each epoch before the last is divided; rank 0 serves the request in the first. Returns all of the
    request's tokens in the last epoch, in which ranks share steps.
    """
    alone = Engine.from_pretrained(folder, device="cpu", step_times="off")
    assert isinstance(alone.runner, SingleDevice)
    scheduler = SchedulerSettings(prefix_reuse=PrefixReuse.owner)
    engine, runner, store = Engine(alone.checkpoint, alone.runner, scheduler=scheduler), alone.runner, client(mesh)
    request = sampled(engine)
    tokens: list[int] = []
    for number, is_divided in enumerate([*kinds, False], start=1):
        is_last = number > len(kinds)
        running = [RunningRequest(request, tokens[:NUM_KNOWN])] if is_last else []
        epoch = Epoch(number, [0, 1], group_size=1 if is_divided else 2, running=running)
        with joined(epoch, mesh.rank, mesh, settings_of("shm"), store, lambda: False) as own:
            replayed = resume(engine, share_steps(runner, own, Mode.lp), own, epoch, None)
            if number == 1 and (mesh.rank == 0 or not is_divided):
                engine.add_request(request)
                tokens = tokens_of(engine)
            if is_last:
                tokens = [*replayed[0].tokens, *tokens_of(engine)]
    return tokens


NUM_KNOWN = 3


def sampled(engine: Engine) -> Request:
    stop = Stopping(NUM_TOKENS, ignore_eos=True)
    return engine.request_builder.build(BEGINNINGS["first"], Lookahead(3, 3, 3), SAMPLED, stop, request_id="untold")


def tokens_of(engine: Engine) -> list[int]:
    tokens: list[int] = []
    while not engine.is_idle:
        tokens += [token for output in engine.step() for token in output.tokens]
    return tokens


@pytest.mark.parametrize("kinds", [[False], [True, False]], ids=["shared", "divided, then shared"])
def test_a_request_whose_end_nobody_has_heard_of_goes_on_by_its_own_settings(
    checkpoint_folder: Callable[[str], Path], kinds: list[bool]
) -> None:
    """Its sequence has been kept for others to begin from, on ranks that never knew its settings as well."""
    folder = str(checkpoint_folder("llama"))
    alone = Engine.from_pretrained(folder, device="cpu", step_times="off")
    alone.add_request(sampled(alone))
    expected = tokens_of(alone)
    assert len(expected) == NUM_TOKENS
    assert run_ranks(end_untold, 2, folder, kinds) == [expected, expected]


class Holds:
    """What a rank says of its caches."""

    def __init__(self, numbers: dict[str, int]):
        self.num_cached = lambda name, tokens: numbers[name]


def merge(mesh: Mesh, channel: Channel) -> list[FinishedSequence]:
    long = list(range(200))
    own = [
        [
            FinishedSequence("a", long, 5, None),
            FinishedSequence("lost", long, 5, None),
            FinishedSequence("c", [1] * 40, 5, "me"),
        ],
        [
            FinishedSequence("b", long, 5, "me"),
            FinishedSequence("a", long[:150], 5, None),
            FinishedSequence("lost", long, 5, None),
        ],
    ]
    held = [{"a": 199 - MOST_LACKING, "lost": 150 - MOST_LACKING, "c": 39}, {"b": 199, "a": 149, "lost": 0}]
    return still_held(channel, own[mesh.rank], Holds(held[mesh.rank]))  # type: ignore[arg-type]


def test_what_one_rank_holds_almost_whole_is_kept_by_all() -> None:
    """The one that was used last is last. Where ranks know different lengths of one, all take the same."""
    mine, other = run_ranks(merge, 2)
    assert mine == other and [(name, len(tokens)) for name, tokens, *_ in mine] == [("b", 200), ("a", 150), ("c", 40)]
