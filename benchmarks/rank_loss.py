"""Streams that outlive their ranks: `kill -9` at random moments, what becomes of the stream, how long its client waits.

    python -m benchmarks.rank_loss --model demo/python-11m --ranks 2 3 4 --kills 20 --exchange shm gloo

Starts launch/serve.py with `launcher=local` for each number of ranks and exchange (with --launcher ray,
launch/ray_job.py on the Ray cluster of this machine), and learns the ranks' process ids from GET /status. The gap is
the client's longest wait for an event after the kill, less what it waits for that event when nobody is killed. Then
come the scenarios of benchmarks/faults/scenarios.py. Writes tables to --output; the exit code is 1 if any stream was
cut short or differs from the undisturbed one, or a scenario failed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from statistics import median

from benchmarks.faults.kills import Kill, Trial, plans
from benchmarks.faults.rank_server import Launcher, ServerTrouble, serving, shared_memory_files
from benchmarks.faults.requests import long_prompt
from benchmarks.faults.scenarios import SCENARIOS, Outcome, Scenario, play
from benchmarks.shared.report import add_output, markdown_table, parse, progress, publish


def main() -> None:
    arguments = parse_arguments()
    memory_before = shared_memory_files()
    kills, trouble = kill_all(arguments)
    plays = [(scenario, exchange) for exchange in arguments.exchange for scenario in chosen(arguments)]
    outcomes = [
        play(arguments.model, scenario, exchange, arguments.settings, arguments.launcher)
        for scenario, exchange in progress(plays, "scenarios", unit="scenario")
    ]
    left = sorted(shared_memory_files() - memory_before)
    failures = trouble + find_failures(kills, outcomes, left)
    publish(
        arguments.output,
        f"rank_loss-{arguments.model.name}" + ("-ray" if arguments.launcher is Launcher.ray else ""),
        f"Ranks lost in the midst of a stream: {arguments.model.name}",
        describe(arguments, kills, outcomes, failures),
        {"kills": [asdict(kill) for kill in kills], "scenarios": [asdict(outcome) for outcome in outcomes]},
    )
    sys.exit(1 if failures else 0)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=Path("demo/python-11m"), help="folder (default %(default)s)")
    parser.add_argument("--ranks", type=int, nargs="*", default=[2, 3, 4], help="default 2 3 4")
    parser.add_argument("--launcher", type=Launcher, default=Launcher.local, choices=[*Launcher], help="default local")
    parser.add_argument("--exchange", nargs="+", default=["shm", "gloo"], choices=["shm", "gloo", "nccl"])
    parser.add_argument("--kills", type=int, default=20, help="for each number of ranks and exchange (default 20)")
    parser.add_argument("--prompt-tokens", type=int, default=1024, help="of our own workload (default %(default)s)")
    parser.add_argument("--max-new-tokens", type=int, default=256, help="of a stream (default %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the moments and the ranks (default %(default)s)")
    names = ", ".join(scenario.run.__name__ for scenario in SCENARIOS)
    parser.add_argument("--scenarios", nargs="*", metavar="NAME", help=f"default all: {names}")
    parser.add_argument("--settings", nargs="*", default=[], metavar="KEY=VALUE", help="more settings of the servers")
    add_output(parser)
    arguments = parse(parser)
    if any(ranks < 2 for ranks in arguments.ranks) or arguments.kills < 1 or arguments.prompt_tokens < 1:
        parser.error("--ranks must be at least 2 each, --kills and --prompt-tokens at least 1")
    if arguments.scenarios and (unknown := set(arguments.scenarios) - {s.run.__name__ for s in SCENARIOS}):
        parser.error(f"--scenarios {' '.join(sorted(unknown))} not known; there are {names}")
    if not arguments.model.is_dir():
        parser.error(f"--model {arguments.model} is not a folder")
    return arguments


def chosen(arguments: argparse.Namespace) -> list[Scenario]:
    names = arguments.scenarios
    return [scenario for scenario in SCENARIOS if names is None or scenario.run.__name__ in names]


def kill_all(arguments: argparse.Namespace) -> tuple[list[Kill], list[str]]:
    """Those of every exchange and number of ranks; and what kept a server from being measured to the end."""
    kills: list[Kill] = []
    trouble = []
    for exchange in arguments.exchange:
        for num_ranks in arguments.ranks:
            try:
                for kill in kill_some(arguments, exchange, num_ranks):
                    kills.append(kill)
            except ServerTrouble as error:
                trouble.append(f"{exchange}, {num_ranks} ranks: {error}")
    return kills, trouble


def kill_some(arguments: argparse.Namespace, exchange: str, num_ranks: int) -> Iterator[Kill]:
    settings = ["parallel=lp", f"parallel.exchange={exchange}", *arguments.settings]
    with serving(arguments.model, num_ranks, *settings, launcher=arguments.launcher) as server:
        prompt = long_prompt(server.url, arguments.prompt_tokens, arguments.max_new_tokens)
        trial = Trial(server, exchange, prompt, arguments.max_new_tokens)
        drawn = list(islice(plans(num_ranks, arguments.seed), arguments.kills))
        for plan in progress(drawn, f"{exchange}, {num_ranks} ranks", unit="kill"):
            yield trial.kill(plan)


def find_failures(kills: list[Kill], outcomes: list[Outcome], left: list[str]) -> list[str]:
    """One line each."""
    failures = [
        f"{kill.exchange}, {kill.ranks} ranks, rank {kill.victim} killed in {kill.phase} of {kill.kind}: "
        + (kill.error or "not the tokens of the undisturbed stream")
        for kill in kills
        if not kill.is_identical
    ]
    failures += [f"{o.exchange}, {o.ranks} ranks, {o.scenario}: {o.seen}" for o in outcomes if not o.passed]
    return failures + [f"left in shared memory: {name}" for name in left]


def describe(arguments: argparse.Namespace, kills: list[Kill], outcomes: list[Outcome], failures: list[str]) -> str:
    columns = ["exchange", "ranks", "phase", "kills", "whole", "same tokens", "gap: median", "maximum", "all back"]
    groups = {(kill.exchange, kill.ranks, kill.phase): [] for kill in kills}
    for kill in kills:
        groups[kill.exchange, kill.ranks, kill.phase].append(kill)
    scenes = [
        (o.scenario, o.exchange, o.ranks, "-" if o.gap_s is None else milliseconds(o.gap_s), o.seen) for o in outcomes
    ]
    parts = [
        f"Streams of {arguments.max_new_tokens} tokens after up to {arguments.prompt_tokens} of prompt; greedy, "
        "sampled with a seed, and greedy with each token's log-probability take turns. The first rank, the last and "
        "ranks at random are killed with SIGKILL. Gap: the client's longest wait for an event after the kill, less "
        "what it waits for that event undisturbed. All back: median time from the kill until the restarted rank "
        "serves.",
        markdown_table(columns, [row(*key, killed) for key, killed in sorted(groups.items())], num_text=3),
    ]
    if scenes:
        parts.append(markdown_table(["scenario", "exchange", "ranks", "gap", "seen"], scenes, num_text=5))
    parts.append(
        "\n".join(["FAILED:", "", *(f"- {failure}" for failure in failures)]) if failures else "Nothing failed."
    )
    return "\n\n".join(parts)


def row(exchange: str, ranks: int, phase: str, kills: list[Kill]) -> tuple[str, ...]:
    gaps = [kill.gap_s for kill in kills]
    return (
        exchange,
        str(ranks),
        phase,
        str(len(kills)),
        str(sum(kill.is_complete for kill in kills)),
        str(sum(kill.is_identical for kill in kills)),
        *(milliseconds(gap) for gap in (median(gaps), max(gaps))),
        f"{median(kill.recovery_s for kill in kills):.1f} s",
    )


def milliseconds(seconds: float) -> str:
    return f"{1000 * seconds:.0f} ms"


if __name__ == "__main__":
    main()
