"""Loads servers with many requests at once and compares what their clients see.

    python -m benchmarks.load --streams 1,4,16 --rounds 3
    python -m benchmarks.load --ranks 2 --system auto= --system lp=parallel=lp --system static=servers:2 --burst
    python -m benchmarks.load --model smollm2 --dtype bfloat16 --rate 0.5,1,2 --prompts FOLDER
    python -m benchmarks.load --url http://127.0.0.1:8000 --trace FILE

Clients stream greedy answers of a fixed length over HTTP. Closed loops (--streams): each client sends its next request
when its last has ended. Open loops (--rate): requests arrive at random. A trace (--trace) is replayed. --burst: few
streams, then many, then few. --pause: a long prompt arrives beside a stream. All systems stay up during the run and
take turns in every scenario of every round, on the same prompts; each round has other prompts. A system that cannot be
had is left out, and the report says why.

Shown are output tokens and requests a second, goodput (requests a second within --slo-ttft-ms and --slo-tpot-ms), time
to first token, time per token, pauses and latency with percentiles, and rows and tokens per step where a server's
metrics have them. FOLDER is as for benchmarks.peers. Ctrl-C ends the run; what was measured is written to --output.
"""

from __future__ import annotations

import argparse
import signal
from itertools import chain
from pathlib import Path

from benchmarks.load.figures import Slo, summarise_all
from benchmarks.load.options import parse_arguments
from benchmarks.load.prompts import PromptDeck, longest_tokens
from benchmarks.load.report import describe, plot, to_json
from benchmarks.load.rounds import measure
from benchmarks.load.scenarios import Scenario
from benchmarks.load.systems.dialects import Api
from benchmarks.load.systems.specs import ServerNeeds
from benchmarks.shared.categories import read_categories
from benchmarks.shared.report import publish
from launch.config import resources
from lp.model.checkpoint_info import CheckpointInfo, read_checkpoint_info

# More prompts than any folder has: all are taken.
ALL_PROMPTS = 100_000


def main() -> None:
    arguments = parse_arguments(__doc__)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C, so that no server is left behind
    try:
        checkpoint = read_checkpoint_info(resources.resolve(arguments.model))
        deck = make_deck(arguments, checkpoint)
        warm_up = deck.draw_many(arguments.warm_up, arguments.max_new_tokens)
        rounds = [arguments.plan.make(deck, arguments.seed + number) for number in range(arguments.rounds)]
        needs = find_needs(arguments, checkpoint, rounds)
    except ValueError as error:
        raise SystemExit(str(error)) from None
    slo = Slo(arguments.slo_ttft_ms, arguments.slo_tpot_ms)
    found = measure(arguments.specs, needs, Api(arguments.api), warm_up, rounds, arguments.timeout)
    told = (
        f"Rounds: {arguments.rounds}. Answers of {arguments.max_new_tokens} tokens unless a scenario says otherwise, "
        f"greedy, by {Api(arguments.api).path}; {deck.num_drawn} prompts drawn from {deck.num_prompts} different ones, "
        f"seed {arguments.seed}. Number format: {arguments.dtype}. Ranks of our own servers: {arguments.ranks}, unless "
        f"a system says otherwise; threads of a rank: {arguments.threads}. Clients and servers share the machine."
    )
    summaries = summarise_all(found.cells, slo)
    kinds = "-".join(dict.fromkeys(scenario.kind.partition("/")[0] for scenario in rounds[0]))
    name = arguments.name or f"{arguments.ranks}-ranks-{kinds}"
    publish(
        arguments.output,
        f"load-{checkpoint.name}-{arguments.dtype}-{name}",
        f"Under load: {checkpoint.name}, {arguments.dtype}",
        f"{told}\n\n{describe(found, arguments.specs, slo)}",
        to_json(found, slo),
        plot(summaries),
    )
    if not found.cells:
        raise SystemExit("nothing was measured")


def make_deck(arguments: argparse.Namespace, checkpoint: CheckpointInfo) -> PromptDeck:
    """Raises ValueError if no prompt fits."""
    if arguments.api == Api.chat and not getattr(checkpoint.tokenizer, "chat_template", None):
        raise ValueError(f"{checkpoint.name} has no chat template: use --api completions")
    longest = min(arguments.longest_prompt, checkpoint.max_length - arguments.max_new_tokens)
    prompts = read_categories(arguments.prompts, ALL_PROMPTS)
    return PromptDeck(prompts, checkpoint.tokenizer, longest, arguments.seed)


def find_needs(arguments: argparse.Namespace, checkpoint: CheckpointInfo, rounds: list[list[Scenario]]) -> ServerNeeds:
    """What the servers must be able to do for these scenarios. Raises ValueError if one needs a longer context."""
    scenarios = list(chain(*rounds))
    longest = longest_tokens([request for one in scenarios for request in one.requests], checkpoint.tokenizer)
    if longest > checkpoint.max_length:
        raise ValueError(
            f"a request has {longest} tokens with its answer, and the context of {checkpoint.name} has "
            f"{checkpoint.max_length}: lower --max-new-tokens, --pause or --trace-scale"
        )
    path = str(Path(checkpoint.path).resolve()) if Path(checkpoint.path).exists() else checkpoint.path
    most = max(max(scenario.most_streams for scenario in scenarios), arguments.warm_up)
    return ServerNeeds(path, arguments.dtype, arguments.ranks, arguments.threads, most, longest)


if __name__ == "__main__":
    main()
