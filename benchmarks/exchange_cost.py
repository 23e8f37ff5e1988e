"""Measures one exchange between ranks of this host: shared memory against gloo, and NCCL on GPUs.

    python -m benchmarks.exchange_cost --ranks 2

Each rank computes for a while, as in a decoding step, and then exchanges. The cost of one exchange is the time from the
arrival of the last rank until every rank has the data: the exchange is not charged for the ranks' different arrivals.
The kinds of exchange take turns, block by block, within one run. Prints a table and writes it to --output.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import torch

from benchmarks.shared.exchange_timing import ExchangeCost, ExchangePlan, measure_exchanges
from benchmarks.shared.options import add_output, make_parser, parse
from benchmarks.shared.report import markdown_table, publish


def main() -> None:
    plan, output = parse_arguments()
    costs = measure_exchanges(plan)
    title = f"Cost of one exchange: {plan.num_bytes} bytes between {plan.ranks} ranks of one host"
    data = {"plan": asdict(plan), "costs": [asdict(cost) for cost in costs]}
    publish(output, f"exchange_cost-{plan.ranks}-ranks", title, describe(plan, costs), data)


def parse_arguments() -> tuple[ExchangePlan, Path]:
    parser = make_parser(__doc__)
    nccl = ["nccl"] if torch.cuda.is_available() else []
    parser.add_argument("--ranks", type=int, default=2, help="processes on this host (default 2)")
    parser.add_argument(
        "--exchanges",
        nargs="+",
        default=["shm", "gloo", *nccl],
        choices=["shm", "gloo", "nccl"],
        help="kinds of exchange to compare (default shm and gloo, and nccl where there is a GPU)",
    )
    parser.add_argument("--bytes", type=int, default=512, help="bytes sent by each rank, a multiple of 4 (default 512)")
    parser.add_argument(
        "--work-ms",
        type=float,
        nargs="+",
        default=[0, 2, 5, 20],
        help="milliseconds of work before each exchange (default 0 2 5 20)",
    )
    parser.add_argument(
        "--evict-mb", type=int, default=0,
        help="megabytes that each rank reads and writes before each exchange, to evict its caches (default 0)",
    )  # fmt: skip
    parser.add_argument("--rounds", type=int, default=300, help="exchanges of each kind for each work (default 300)")
    add_output(parser)
    arguments = parse(parser, keep_memory=False)
    if arguments.ranks < 2 or arguments.bytes < 4 or arguments.bytes % 4 or arguments.rounds < 1:
        parser.error("--ranks must be at least 2, --bytes a positive multiple of 4, --rounds at least 1")
    if arguments.evict_mb < 0:
        parser.error("--evict-mb must be at least 0")
    plan = ExchangePlan(
        arguments.ranks, arguments.exchanges, arguments.bytes, arguments.work_ms, arguments.rounds, arguments.evict_mb
    )
    return plan, arguments.output


def describe(plan: ExchangePlan, costs: list[ExchangeCost]) -> str:
    rows = [
        (f"{cost.work_ms:g} ms", cost.exchange, f"{cost.median_us:.1f}", f"{cost.mean_us:.1f}", f"{cost.p99_us:.1f}")
        for cost in costs
    ]
    return "\n\n".join(
        [
            f"{plan.rounds} rounds. Microseconds from the arrival of the last rank until all ranks have the data, by "
            f"the work that each rank does before the exchange. Then each reads and writes {plan.evict_mb} MB.",
            markdown_table(["work", "exchange", "median", "mean", "p99"], rows, num_text=2),
        ]
    )


if __name__ == "__main__":
    main()
