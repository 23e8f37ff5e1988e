"""Ranks that divide and come together go on with what they have learnt about drafts, and agree on it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from lp import Auto, Engine, Sampling, Stopping
from lp.drafting.account import Estimates
from lp.request import Request
from lp.runner.single_device import SingleDevice
from parallel.build import share_steps
from parallel.comm.channel import Channel
from parallel.groups.epoch import Epoch, RunningRequest, joined, resume
from parallel.mesh import Mesh
from tests.parallel.groups.test_epoch import client, settings_of
from tests.parallel.ranks import run_ranks

DECODE = Auto(rows=12)
PROMPTS = [[5, 9, 5, 9, 5, 9, 5, 9], [(3 + 7 * i) % 41 + 2 for i in range(30)]]


def request_of(engine: Engine, number: int, name: str) -> Request:
    greedy, stopping = Sampling(temperature=0.0, seed=0), Stopping(40, ignore_eos=True)
    return engine.request_builder.build(PROMPTS[number], DECODE, greedy, stopping, request_id=name)


def probabilities(engine: Engine) -> list[float]:
    return list(engine.history.profile(DECODE, 0.0).estimates.probabilities)


def divide_and_meet(mesh: Mesh, channel: Channel, folder: str) -> tuple[list[list[float]], list[int]]:
    """What each rank thinks of its drafts at the end of an epoch of its own, and at the begin and the end of one that
    they share, and of another one of its own; and the tokens of the shared request.
    """
    engine = Engine.from_pretrained(folder, device="cpu")
    engine.fingerprints = True
    assert isinstance(engine.runner, SingleDevice)
    alone, store, found, tokens = engine.runner, client(mesh), [], []
    for epoch in (Epoch(1, [0, 1], group_size=1), Epoch(2, [0, 1]), Epoch(3, [0, 1], group_size=1)):
        number = mesh.rank if epoch.is_divided else 0
        epoch.running = [RunningRequest(request_of(engine, number, str(epoch.number)), [])]
        with joined(epoch, mesh.rank, mesh, settings_of("shm"), store, lambda: False) as joint:
            resume(engine, share_steps(alone, joint), joint, epoch, None)
            found.append(probabilities(engine))
            while not engine.is_idle:
                for output in engine.step():
                    tokens += output.tokens if epoch.number == 2 else []
            found.append(probabilities(engine))
    return found, tokens


def test_ranks_go_on_with_what_they_have_learnt(checkpoint_folder: Callable[[str], Path], llama: Engine) -> None:
    (first, tokens), (second, same) = run_ranks(divide_and_meet, 2, str(checkpoint_folder("llama")))
    begun, alone, met, together, parted, _ = zip(first, second, strict=True)
    fresh = list(Estimates(llama.history.profile(DECODE, 0.0).kinds.priors).probabilities)
    assert begun == (fresh, fresh) and alone[0] != alone[1] and fresh not in alone
    assert met[0] == met[1] != fresh, "what both have learnt"
    for of_both, *of_each in zip(met[0], *alone, strict=True):
        assert min(of_each) - 1e-9 <= of_both <= max(of_each) + 1e-9
    assert together[0] == together[1] != met[0]
    assert max(abs(one - other) for one, other in zip(parted[0], together[0], strict=True)) < 1e-12
    assert tokens == same == llama.generate(PROMPTS[0], max_new_tokens=40, decode=DECODE, stopping=None).token_ids
