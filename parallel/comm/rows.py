"""Tables of integers whose rows are computed by several replicas: what a replica sends of them, and what all get.

    N ranks, P replicas, H integers ahead of a message, I integers of a message, R rows of a table, C its columns

A replica sends its rows of all tables one behind the other, and zeros behind them up to I, which is the same on all
ranks. C may differ from table to table. All ranks of a replica, which are neighbours, send the same.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

# Integers ahead of the rows.
HEADER = 2


class Table(NamedTuple):
    """Integers whose rows several replicas have.

    senders: by replica, the rows that it sends, ascending. Of several that send a row, the lowest replica's counts.
    numbers: int32 [R, C], to be filled.
    """

    senders: Mapping[int, Sequence[int]]
    numbers: np.ndarray


def message_length(tables: Sequence[Table], num_replicas: int) -> int:
    """I, the number of integers of each rank's message."""
    lengths = [0] * num_replicas
    for senders, numbers in tables:
        num_columns = numbers.shape[1]
        for replica, rows in senders.items():
            lengths[replica] += len(rows) * num_columns
    return HEADER + max(lengths)


def pack(header: Sequence[int], own: Sequence[np.ndarray], length: int) -> np.ndarray:
    """A replica's message, int32 [I]. own: its rows of each table of which it has any, int32 [rows, C]. length: I."""
    message = np.zeros(length, np.int32)
    message[:HEADER] = header
    begin = HEADER
    for rows in own:
        message[begin : begin + rows.size] = rows.ravel()
        begin += rows.size
    return message


def fill(tables: Sequence[Table], messages: np.ndarray) -> None:
    """Fills the tables by the messages of all replicas, int32 [P, I]."""
    begins = [HEADER] * len(messages)
    for senders, numbers in tables:
        num_columns = numbers.shape[1]
        for replica, rows in sorted(senders.items(), reverse=True):
            begin, end = begins[replica], begins[replica] + len(rows) * num_columns
            numbers[rows] = messages[replica, begin:end].reshape(len(rows), num_columns)
            begins[replica] = end


class GathersRows(ABC):
    """An exchange whose rows travel by its all-gather."""

    num_ranks: int

    @abstractmethod
    def all_gather(self, mine: np.ndarray) -> np.ndarray: ...

    def gather_rows(
        self, header: tuple[int, int], own: list[np.ndarray], tables: list[Table], ranks_per_replica: int = 1
    ) -> np.ndarray:
        length = message_length(tables, self.num_ranks // ranks_per_replica)
        messages = self.all_gather(pack(header, own, length))
        fill(tables, messages[::ranks_per_replica])
        return messages[:, :HEADER]
