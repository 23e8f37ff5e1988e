"""What a projection charges for communication.

A collective costs a latency, and the time of the bytes that a ring algorithm moves over each rank's link. For n bytes
per rank and R ranks these are n (R - 1) bytes in an all-gather.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass

# Microseconds of a step's exchange between two ranks of one host, by native code in shared memory and with cold caches,
# and of a sum over the ranks of tensor parallelism in a CPU's native forward (docs/log/ranks.md, 2026-11-25).
EXCHANGE_US = 25.0
COLLECTIVE_US = 1.3


def add_exchange(parser: argparse.ArgumentParser, what: str) -> None:
    """Adds the time of an exchange. what: takes this time, for the help."""
    parser.add_argument(
        "--exchange-us", type=float, default=EXCHANGE_US, metavar="US",
        help=f"{what} (default %(default)g, measured in shared memory)",
    )  # fmt: skip


@dataclass(frozen=True)
class Charges:
    """Collectives, and bytes over one rank's link."""

    num_collectives: int = 0
    link_bytes: float = 0.0


@dataclass(frozen=True)
class Network:
    """latency_us: microseconds of a collective. gb_per_s: 10^9 bytes per second over the link of each rank."""

    latency_us: float
    gb_per_s: float

    def seconds(self, charges: Charges) -> float:
        return charges.num_collectives * self.latency_us * 1e-6 + charges.link_bytes / (self.gb_per_s * 1e9)


def all_gather(num_bytes: int, num_ranks: int) -> Charges:
    """Charges of an all-gather. num_bytes: size of one rank's tensor. A single rank is charged nothing."""
    return Charges(1, num_bytes * (num_ranks - 1)) if num_ranks > 1 else Charges()
