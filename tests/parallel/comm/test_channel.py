"""The channel carries payloads, commands and the comparison of states, in one collective per step."""

from __future__ import annotations

import numpy as np
import pytest

from parallel.comm.base import LocalExchange
from parallel.comm.channel import Channel
from parallel.errors import StateDiverged
from tests.parallel.ranks import gather, run_ranks

COMMANDS = {2: bytes(range(256)), 3: b"", 7: b"shutdown"}


def follow_commands(mesh, channel):
    """Makes ten steps and returns the commands that this rank received, by step."""
    received = {}
    for step in range(10):
        if channel.is_leader:
            channel.announce(step in COMMANDS)
        before = channel.traffic.num_collectives
        payload = np.arange(5, dtype=np.int32) + 100 * mesh.rank + 1000 * step
        gathered = gather(channel, payload, fingerprint=2**40 + 3_000_000_000 + step)
        assert channel.traffic.num_collectives == before + 1, "a step takes one collective"
        expected = [(np.arange(5) + 100 * rank + 1000 * step).tolist() for rank in range(mesh.num_ranks)]
        assert gathered.tolist() == expected and gathered.dtype == np.int32
        assert channel.commands_due == (step in COMMANDS)
        if channel.commands_due:
            received[step] = channel.share(COMMANDS[step] if channel.is_leader else None)
            assert not channel.commands_due
    assert (channel.rank, channel.num_ranks, channel.num_steps) == (mesh.rank, mesh.num_ranks, 10)
    assert channel.traffic.bytes_sent > 0 or mesh.num_ranks == 1
    return received


@pytest.mark.parametrize(("num_ranks", "exchange"), [(1, "auto"), (2, "shm"), (3, "shm"), (2, "gloo")])
def test_every_rank_receives_the_commands_at_the_same_step(num_ranks: int, exchange: str):
    assert run_ranks(follow_commands, num_ranks, exchange=exchange) == [COMMANDS] * num_ranks


def share_without_announcement(mesh, channel):
    commands = b"x" * 500_000
    assert channel.share(commands if channel.is_leader else None) == commands
    assert channel.share(b"" if channel.is_leader else None) == b""


def test_commands_of_any_size_may_be_shared_between_steps():
    run_ranks(share_without_announcement, 2)


def diverge(mesh, channel, culprits: list[int], wrong_step: int):
    for step in range(1, 10):
        state = 1234 + step + (mesh.rank if mesh.rank in culprits and step >= wrong_step else 0)
        try:
            gather(channel, np.zeros(3, np.int32), fingerprint=state)
        except StateDiverged as error:
            return str(error), error.rank, error.step
    return None


@pytest.mark.parametrize(("culprits", "first"), [([2], 2), ([1, 2], 1)])
def test_a_divergence_names_the_first_rank_and_the_step(culprits: list[int], first: int):
    reports = run_ranks(diverge, 3, culprits, 4)
    assert len(set(reports)) == 1
    message, rank, step = reports[0]
    assert (rank, step) == (first, 4)
    assert f"in step 4 the state of rank {first} differs from that of rank 0" in message


def test_equal_states_do_not_diverge():
    assert run_ranks(diverge, 2, [], 4) == [None, None]


def test_a_single_rank_receives_what_it_said_itself():
    channel = Channel(LocalExchange())
    assert channel.is_leader and channel.num_ranks == 1
    channel.announce(True)
    assert gather(channel, np.array([5], np.int32), fingerprint=-1).tolist() == [[5]]
    assert channel.commands_due
    assert channel.share(b"a") == b"a"
    gather(channel, np.array([5], np.int32))
    assert not channel.commands_due
    channel.close()


def test_an_announcement_can_be_withdrawn():
    channel = Channel(LocalExchange())
    channel.announce(True)
    channel.announce(False)
    gather(channel, np.zeros(0, np.int32))
    assert not channel.commands_due


def test_commands_that_are_not_json_are_refused():
    with pytest.raises(TypeError):
        Channel(LocalExchange()).broadcast({"object": object()})
