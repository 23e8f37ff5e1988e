"""Every exchange delivers what was sent, whatever the sizes and the number of ranks."""

from __future__ import annotations

import os
import time
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch.distributed
from torch.distributed import PrefixStore

from lp.platform.library import python_alone
from parallel.comm.base import LocalExchange
from parallel.comm.connect import connect
from parallel.comm.rows import Table
from parallel.comm.shared_memory import SLOT_BYTES, Mailbox
from parallel.mesh import ExchangeKind, ParallelSettings, open_store
from tests.parallel.ranks import gather, run_ranks
from tests.slow import slow_except

KINDS = ("shm", "gloo")
SLOT_INTS = SLOT_BYTES // 4


def integers_of(rank: int, round_number: int, size: int) -> np.ndarray:
    return np.random.default_rng((rank, round_number)).integers(-(2**31), 2**31, size).astype(np.int32)


def gather_and_broadcast(mesh, channel, num_rounds: int, max_size: int):
    """Checks everything that this rank receives; returns its counts and the counts that are expected."""
    exchange = channel._exchange
    sizes = np.random.default_rng(0).integers(0, max_size + 1, num_rounds).tolist()
    special = {1: 0, 2: SLOT_INTS - 1, 3: SLOT_INTS, 4: SLOT_INTS + 1, 5: 3 * SLOT_INTS}
    bytes_sent = 0
    for number, size in enumerate(sizes):
        size = special.get(number, size)
        gathered = exchange.all_gather(integers_of(mesh.rank, number, size))
        assert gathered.shape == (mesh.num_ranks, size) and gathered.dtype == np.int32
        for rank in range(mesh.num_ranks):
            assert (gathered[rank] == integers_of(rank, number, size)).all(), (number, rank)
        bytes_sent += 4 * size
    for length in (0, 1, 5, SLOT_BYTES - 1, SLOT_BYTES, SLOT_BYTES + 1, 3 * 2**20 + 7, 0):
        data = np.random.default_rng(length).bytes(length)
        assert exchange.broadcast(data if mesh.rank == 0 else None) == data
        bytes_sent += length if mesh.rank == 0 else 0
        assert exchange.all_gather(np.array([mesh.rank], np.int32)).tolist() == [[r] for r in range(mesh.num_ranks)]
        bytes_sent += 4
    return (exchange.traffic.num_collectives, exchange.traffic.bytes_sent), (
        num_rounds + 16,
        bytes_sent if mesh.num_ranks > 1 else 0,
    )


@pytest.mark.parametrize("num_ranks", slow_except([1, 2, 3, 4], 1, 2))
@pytest.mark.parametrize("kind", KINDS)
def test_all_ranks_receive_what_was_sent(kind: str, num_ranks: int):
    num_rounds = 2000 if kind == "shm" else 300
    for counted, expected in run_ranks(gather_and_broadcast, num_ranks, num_rounds, 200, exchange=kind):
        assert counted == expected


def gather_without_library(mesh, channel, num_rounds: int, max_size: int):
    """As where a rank has no compiler."""
    settings = ParallelSettings(exchange=ExchangeKind.shm, timeout_s=30)
    with python_alone():
        exchange = connect(settings, mesh, PrefixStore("python", open_store(mesh, 30)))
    with closing(exchange):
        return gather_and_broadcast(mesh, SimpleNamespace(_exchange=exchange), num_rounds, max_size)


def test_all_ranks_receive_what_was_sent_without_the_library():
    for counted, expected in run_ranks(gather_without_library, 2, 300, 200, exchange="shm"):
        assert counted == expected


def gather_some_rows(mesh, channel, num_rounds: int, ranks_per_replica: int):
    """Checks tables of all sizes, some of whose rows are sent by several replicas."""
    exchange, random = channel._exchange, np.random.default_rng(0)
    num_replicas = mesh.num_ranks // ranks_per_replica
    for number in range(num_rounds):
        tables, expected, own = [], [], []
        for _ in range(random.integers(0, 4)):
            num_rows = SLOT_INTS // 3 if number == 1 else int(random.integers(1, 40))
            shape = num_rows, int(random.integers(1, 5))
            senders: dict[int, list[int] | range] = {}
            wanted = np.zeros(shape, np.int32)
            for replica in random.permutation(num_replicas).tolist():
                rows = np.flatnonzero(random.random(num_rows) < 0.6).tolist()
                senders[replica] = range(num_rows) if random.random() < 0.2 else rows
            senders[num_replicas - 1] = range(num_rows)  # all rows are sent by somebody
            for replica in range(num_replicas - 1, -1, -1):
                rows, all_numbers = list(senders[replica]), random.integers(-(2**31), 2**31, shape).astype(np.int32)
                wanted[rows] = all_numbers[rows]
                if replica == mesh.rank // ranks_per_replica:
                    # Side by side or not, in rows or in columns.
                    own.append(np.asfortranarray(all_numbers[rows]) if number % 2 else all_numbers[rows])
            tables.append(Table(senders, np.full(shape, -1, np.int32)))
            expected.append(wanted)
        headers = exchange.gather_rows((number, mesh.rank), own, tables, ranks_per_replica)
        assert headers.tolist() == [[number, rank] for rank in range(mesh.num_ranks)]
        for table, wanted in zip(tables, expected, strict=True):
            assert np.array_equal(table.numbers, wanted), number
    return exchange.traffic.num_collectives


@pytest.mark.parametrize(("kind", "num_ranks", "ranks_per_replica"), [("shm", 2, 1), ("shm", 4, 2), ("gloo", 2, 1)])
def test_all_ranks_receive_the_rows_of_all_replicas(kind: str, num_ranks: int, ranks_per_replica: int):
    assert run_ranks(gather_some_rows, num_ranks, 100, ranks_per_replica, exchange=kind) == [100] * num_ranks


def gather_rows_without_library(mesh, channel):
    with python_alone():
        exchange = connect(
            ParallelSettings(exchange=ExchangeKind.shm), mesh, PrefixStore("python", open_store(mesh, 30))
        )
    with closing(exchange):
        return gather_some_rows(mesh, SimpleNamespace(_exchange=exchange), 30, 1)


def test_all_ranks_receive_the_rows_of_all_without_the_library():
    assert run_ranks(gather_rows_without_library, 2, exchange="shm") == [30] * 2


def count_quickly(mesh, channel, num_rounds: int):
    """Counts in ranks that are unevenly busy: a slot overwritten too early would show a wrong round."""
    exchange = channel._exchange
    random = np.random.default_rng(mesh.rank)
    for number in range(num_rounds):
        for _ in range(random.integers(0, 200)):
            pass
        gathered = exchange.all_gather(np.full(3, number, np.int32))
        assert (gathered == number).all(), (number, gathered)
    return True


@pytest.mark.parametrize("num_ranks", slow_except([2, 4], 2))
def test_many_rounds_in_shared_memory(num_ranks: int):
    assert all(run_ranks(count_quickly, num_ranks, 12_000 // num_ranks, exchange="shm"))


def find_leftovers(mesh, channel):
    gather(channel, np.zeros(1, np.int32))  # rank 0 takes the path away once all have met
    mapped = [line for line in Path("/proc/self/maps").read_text().splitlines() if "lookahead-parallel-" in line]
    return [line.endswith("(deleted)") for line in mapped], torch.distributed.is_initialized()


def test_shared_memory_leaves_no_file_and_makes_no_process_group():
    for deleted, has_group in run_ranks(find_leftovers, 2, exchange="shm"):
        assert deleted == [True, True] and not has_group  # the files of the exchange and of its messages


def send_different_sizes(mesh, channel):
    with pytest.raises(RuntimeError, match=r"rank . sent . bytes to an all-gather where rank . sent ."):
        channel._exchange.all_gather(np.zeros(1 + mesh.rank, np.int32))


def make_different_calls(mesh, channel):
    with pytest.raises(RuntimeError, match=r"rank . is in an? .* while rank . is in an? .*no longer do the same"):
        if mesh.rank == 0:
            channel._exchange.broadcast(b"1")
        else:
            channel._exchange.all_gather(np.zeros(1, np.int32))


@pytest.mark.parametrize("fn", [send_different_sizes, make_different_calls])
def test_ranks_that_no_longer_do_the_same_are_told_so(fn):
    run_ranks(fn, 2, exchange="shm")


def wait_for_a_slow_rank(mesh, channel):
    if mesh.rank == 1:
        time.sleep(1.5)
    begin = os.times()
    channel._exchange.all_gather(np.zeros(1, np.int32))
    end = os.times()
    return (end.user + end.system) - (begin.user + begin.system)


def test_waiting_costs_little_processor_time():
    assert max(run_ranks(wait_for_a_slow_rank, 2, exchange="shm")) < 0.3


def test_ranks_can_meet_at_a_store_that_rank_0_hosts():
    assert all(run_ranks(count_quickly, 2, 10, exchange="shm", own_store=True))
    assert all(run_ranks(count_quickly, 2, 10, exchange="gloo", own_store=True))


def test_auto_is_shared_memory_on_one_host():
    assert run_ranks(kind_of_exchange, 2, exchange="auto") == ["SharedMemoryExchange"] * 2


def kind_of_exchange(mesh, channel):
    return type(channel._exchange).__name__


def test_a_single_rank_receives_its_own_data():
    exchange = LocalExchange()
    mine = np.arange(3, dtype=np.int32)
    gathered = exchange.all_gather(mine)
    mine[0] = 9
    assert gathered.tolist() == [[0, 1, 2]]
    assert exchange.broadcast(b"abc") == b"abc"
    assert (exchange.rank, exchange.num_ranks, exchange.traffic.num_collectives, exchange.traffic.bytes_sent) == (
        0,
        1,
        2,
        0,
    )
    exchange.close()
    exchange.close()


def test_a_mailbox_hides_a_message_whose_bytes_are_not_yet_visible():
    with closing(Mailbox.create(2)) as file:
        writer, reader = Mailbox(file.path, 0, 2), Mailbox(file.path, 1, 2)
    assert reader.read(0, 1) is None
    writer.publish(1, 7, 3, memoryview(b"abc"))
    message = reader.read(0, 1)
    assert message is not None and (message.kind, message.total, bytes(message.part)) == (7, 3, b"abc")
    first_byte = reader._bytes.tobytes().index(b"abc")
    reader._bytes[first_byte] = ord("x")
    assert reader.read(0, 1) is None, "a message was shown although its checksum is not that of its bytes"
    assert reader.read(0, 3) is None
    assert not reader.has_left(0)
    writer.leave()
    assert reader.has_left(0) and not reader.has_left(1)
    writer.close()
    reader.close()


def test_where_files_need_a_name_the_file_is_deleted_when_it_is_closed(monkeypatch, tmp_path):
    monkeypatch.delattr("os.memfd_create")
    monkeypatch.setattr("parallel.comm.shared_memory.MEMORY_FOLDER", str(tmp_path / "absent"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with closing(Mailbox.create(2)) as file:
        assert os.path.dirname(file.path) == str(tmp_path)
        Mailbox(file.path, 0, 2).close()
    assert not list(tmp_path.iterdir())
