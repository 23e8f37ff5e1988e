"""What leaders are told: all of an epoch's requests, or their own; and how requests move between them."""

from __future__ import annotations

from dataclasses import replace

from parallel.groups.dispatcher import Dispatcher
from parallel.groups.elastic import ElasticGroups
from parallel.groups.epoch import Epoch
from parallel.groups.messages import Abort, AddRequest, Command, Regroup, ResetPrefixes, Shutdown
from parallel.mesh import Mode
from tests.parallel.groups.test_ledger import submit, told

Sent = list[tuple[int, int, Command]]


def begun(epoch: Epoch, *names: str) -> tuple[Dispatcher, Sent]:
    """A dispatcher in an epoch, with these requests, and what it sends: rank, epoch and command."""
    sent: Sent = []
    dispatcher = Dispatcher(
        lambda rank, epoch, issued: sent.extend((rank, epoch.number, one) for one in issued), ElasticGroups(Mode.auto)
    )
    dispatcher.begin(epoch)
    dispatcher.hand_out([submit(name) for name in names])
    return dispatcher, sent


def divided(number: int, *members: int) -> Epoch:
    return Epoch(number, list(members), group_size=1)


def names(epoch: Epoch) -> list[str]:
    return [entry.request.id for entry in epoch.running]


def test_the_leader_is_told_all() -> None:
    dispatcher, sent = begun(Epoch(1, [2, 0]), "a", "b")
    dispatcher.hand_out([Abort("a"), Regroup()])
    assert [rank for rank, _, _ in sent] == [2] * 4
    told_by_rank, ended = dispatcher.begin(Epoch(2, [0, 2]))
    assert list(told_by_rank) == [0] and names(told_by_rank[0]) == ["b"]
    assert [output.request_id for output in ended] == ["a"], "whose end no rank has sent"


def test_requests_that_come_while_an_epoch_ends_wait_for_the_next() -> None:
    dispatcher, sent = begun(Epoch(1, [0, 1]), "a")
    dispatcher.hand_out([Regroup()])
    del sent[:]
    dispatcher.hand_out([submit("b"), submit("c"), Abort("a"), Abort("c")])
    assert sent == [(0, 1, Abort("a"))]
    shares, ended = dispatcher.begin(divided(2, 0, 1))
    assert [output.request_id for output in ended] == ["a", "c"]
    assert names(shares[0]) + names(shares[1]) == ["b"]
    dispatcher.hand_out([submit("d")])
    assert [command.request.id for _, _, command in sent[1:] if isinstance(command, AddRequest)] == ["d"]


def test_prefixes_are_forgotten_by_the_next_epoch_if_this_one_ends() -> None:
    dispatcher, sent = begun(Epoch(1, [0, 1]))
    dispatcher.hand_out([Regroup(), ResetPrefixes()])
    assert sent == [(0, 1, Regroup())]
    del sent[:]
    dispatcher.begin(divided(2, 0, 1))
    assert sent == [(0, 2, ResetPrefixes()), (1, 2, ResetPrefixes())]
    dispatcher.hand_out([Regroup()])
    del sent[:]
    dispatcher.begin(Epoch(3, [0, 1]))
    assert not sent, "but only once"


def test_prefixes_are_forgotten_again_if_a_rank_is_lost_meanwhile() -> None:
    """A rank that is lost may have taken the command with it."""
    dispatcher, sent = begun(Epoch(1, [0, 1, 2]))
    dispatcher.hand_out([ResetPrefixes()])
    for number, members in enumerate(([0, 1], [1]), 2):
        del sent[:]
        dispatcher.begin(Epoch(number, members))
        assert sent == [(members[0], number, ResetPrefixes())]
    dispatcher.hand_out([Regroup()])
    del sent[:]
    dispatcher.begin(Epoch(4, [1, 2]))
    assert not sent


def test_in_a_divided_epoch_each_rank_is_told_its_own() -> None:
    dispatcher, sent = begun(divided(1, 0, 1), "a", "b", "c")
    assert [(rank, command.request.id) for rank, _, command in sent if isinstance(command, AddRequest)] == [
        (0, "a"), (0, "c"), (1, "b"),
    ]  # fmt: skip
    del sent[:]
    dispatcher.hand_out([Abort("b"), Abort("unknown"), Shutdown()])
    assert sent == [(0, 1, Shutdown()), (1, 1, Abort("b")), (1, 1, Shutdown())]


def test_requests_are_dealt_out_when_an_epoch_is_divided_and_stay_while_it_is() -> None:
    dispatcher, _ = begun(Epoch(1, [0, 1, 2]), *"abcdef")
    shares, _ = dispatcher.begin(divided(2, 0, 1, 2))
    assert [names(shares[rank]) for rank in range(3)] == [["a", "d"], ["b", "e"], ["c", "f"]]
    assert all(share.number == 2 and share.is_divided for share in shares.values())
    shares, _ = dispatcher.begin(divided(3, 0, 2))
    assert [names(shares[rank]) for rank in (0, 2)] == [["a", "b", "d"], ["c", "e", "f"]]
    shares, _ = dispatcher.begin(Epoch(4, [0, 2]))
    assert names(shares[0]) == [*"abcdef"] and list(shares) == [0]


def test_requests_are_dealt_out_to_where_they_were_computed() -> None:
    dispatcher, _ = begun(Epoch(1, [0, 1]), *"abcdef")
    dispatcher.left(0, 1, {"b": 3, "d": 8, "e": 1})
    dispatcher.left(1, 1, {"b": 5, "d": 5, "c": 5, "f": 5})
    shares, _ = dispatcher.begin(divided(2, 0, 1))
    assert [names(shares[rank]) for rank in range(2)] == [["a", "d", "e"], ["b", "c", "f"]]


def test_a_request_that_would_take_long_to_compute_again_does_not_move() -> None:
    dispatcher, sent = begun(divided(1, 0, 1))
    dispatcher.hand_out([AddRequest(replace(submit(name).request, prompt=[1] * 300)) for name in "abc"])
    dispatcher.new_part(0, 1, told("a", [5], "x"))
    dispatcher.new_part(0, 1, told("c", [5], "x"))
    del sent[:]
    dispatcher.new_part(1, 1, told("b", [5], "x", "length"))
    assert sent == []


def test_a_request_moves_from_a_rank_with_many_to_one_without() -> None:
    dispatcher, sent = begun(divided(1, 0, 1), "a", "b", "c")
    dispatcher.new_part(0, 1, told("a", [5, 6], "xy"))
    dispatcher.new_part(0, 1, told("c", [5], "x"))
    del sent[:]
    dispatcher.new_part(1, 1, told("b", [5], "x", "length"))
    (withdrawn, resumed) = sent
    assert withdrawn == (0, 1, Abort("c"))
    rank, _, command = resumed
    assert rank == 1 and isinstance(command, AddRequest) and (command.request.id, command.tokens) == ("c", (5,))
    assert dispatcher.new_part(0, 1, told("c", [], "", "cancelled")) is None
    new = dispatcher.new_part(1, 1, told("c", [5, 6], "xy"))
    assert new and (new.tokens, new.text) == ([6], "y")


def test_where_steps_are_shared_nothing_moves() -> None:
    dispatcher, sent = begun(Epoch(1, [0, 1]), "a", "b")
    del sent[:]
    dispatcher.new_part(0, 1, told("a", [5], "x", "length"))
    assert sent == [] and dispatcher.num_running == 1


def test_without_an_epoch_requests_wait_and_cancelled_ones_end() -> None:
    dispatcher, sent = begun(Epoch(1, [0]))
    dispatcher.drop_all()
    ended = dispatcher.hand_out([submit("a"), submit("b"), Abort("a")])
    assert [output.request_id for output in ended] == ["a"] and sent == []
    shares, _ = dispatcher.begin(Epoch(2, [1]))
    assert names(shares[1]) == ["b"]
