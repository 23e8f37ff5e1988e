"""Kills ranks at random moments of streams and checks that each stream continues unchanged.

    python -m benchmarks.rank_loss --model demo/python-11m --ranks 2 3 4 --kills 20 --exchange shm gloo

Starts launch/serve.py with `launcher=local` for each number of ranks and exchange (with --launcher ray,
launch/ray_job.py on the Ray cluster of this machine), learns the ranks' process ids from GET /status, and kills ranks
with SIGKILL. The gap is the client's longest extra wait for an event after the kill, beyond what it waits for that
event when no rank is killed. With --streams N, N - 1 other clients ask all the time, and each of their answers must be
right as well; with many of them, each rank serves requests of its own. Then it plays the scenarios of
benchmarks/faults/scenarios.py. Writes tables to --output. The exit code is 1 if any stream was cut short or differs
from the undisturbed one, if another answer was wrong, or if a scenario failed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import asdict
from itertools import islice
from statistics import median

from benchmarks.faults.company import company
from benchmarks.faults.kills import KillResult, KillTrial, plans
from benchmarks.faults.options import make_server_parser, parse_server_options
from benchmarks.faults.rank_server import LauncherKind, ServerTrouble, serving, shared_memory_files
from benchmarks.faults.requests import long_prompt
from benchmarks.faults.scenarios import SCENARIOS, Scenario, ScenarioResult, play
from benchmarks.faults.soak_load import LoadAnswer
from benchmarks.shared.report import describe_failures, markdown_table, progress, publish


def main() -> None:
    arguments = parse_arguments()
    memory_before = shared_memory_files()
    kills, others, trouble = kill_all(arguments)
    plays = [(scenario, exchange) for exchange in arguments.exchange for scenario in chosen(arguments)]
    outcomes = [
        play(arguments.model, scenario, exchange, arguments.settings, arguments.launcher)
        for scenario, exchange in progress(plays, "scenarios", unit="scenario")
    ]
    left = sorted(shared_memory_files() - memory_before)
    failures = trouble + find_failures(kills, others, outcomes, left)
    publish(
        arguments.output,
        f"rank_loss-{arguments.model.name}" + ("-ray" if arguments.launcher is LauncherKind.ray else ""),
        f"Ranks lost during a stream: {arguments.model.name}",
        describe(arguments, kills, others, outcomes, failures),
        {
            "kills": [asdict(kill) for kill in kills],
            "others": [asdict(answer) for answer in others],
            "scenarios": [asdict(outcome) for outcome in outcomes],
        },
    )
    sys.exit(1 if failures else 0)


def parse_arguments() -> argparse.Namespace:
    parser = make_server_parser(__doc__)
    parser.add_argument("--ranks", type=int, nargs="*", default=[2, 3, 4], help="numbers of ranks (default 2 3 4)")
    parser.add_argument(
        "--launcher",
        type=LauncherKind,
        default=LauncherKind.local,
        choices=[*LauncherKind],
        help="what starts the ranks (default local)",
    )
    parser.add_argument(
        "--exchange", nargs="+", default=["shm", "gloo"], choices=["shm", "gloo", "nccl"], help="default shm gloo"
    )
    parser.add_argument("--kills", type=int, default=20, help="for each number of ranks and exchange (default 20)")
    parser.add_argument(
        "--prompt-tokens",
        type=int,
        default=1024,
        help="length of the prompt, from our own workload (default %(default)s)",
    )
    parser.add_argument("--max-new-tokens", type=int, default=256, help="length of a stream (default %(default)s)")
    parser.add_argument("--streams", type=int, default=1, help="streams at the same time (default %(default)s)")
    names = ", ".join(scenario.run.__name__ for scenario in SCENARIOS)
    parser.add_argument("--scenarios", nargs="*", metavar="NAME", help=f"default all: {names}")
    arguments = parse_server_options(parser)
    if (
        any(ranks < 2 for ranks in arguments.ranks)
        or min(arguments.kills, arguments.prompt_tokens, arguments.streams) < 1
    ):
        parser.error("--ranks must be at least 2 each, --kills, --prompt-tokens and --streams at least 1")
    if arguments.scenarios and (unknown := set(arguments.scenarios) - {s.run.__name__ for s in SCENARIOS}):
        parser.error(f"--scenarios: {' '.join(sorted(unknown))} not known; there are {names}")
    return arguments


def chosen(arguments: argparse.Namespace) -> list[Scenario]:
    names = arguments.scenarios
    return [scenario for scenario in SCENARIOS if names is None or scenario.run.__name__ in names]


def kill_all(arguments: argparse.Namespace) -> tuple[list[KillResult], list[LoadAnswer], list[str]]:
    """The kills for every exchange and number of ranks, the answers of the other streams, and a line for each server
    that was not measured to the end.
    """
    kills: list[KillResult] = []
    others: list[LoadAnswer] = []
    trouble = []
    for exchange in arguments.exchange:
        for num_ranks in arguments.ranks:
            try:
                for kill in kill_some(arguments, exchange, num_ranks, others):
                    kills.append(kill)
            except (ServerTrouble, ValueError) as error:
                trouble.append(f"{exchange}, {num_ranks} ranks: {error}")
    return kills, others, trouble


def kill_some(
    arguments: argparse.Namespace, exchange: str, num_ranks: int, others: list[LoadAnswer]
) -> Iterator[KillResult]:
    """others: gets the answers of the other streams."""
    settings = [f"parallel.exchange={exchange}", *arguments.settings]
    with serving(arguments.model, num_ranks, *settings, launcher=arguments.launcher) as server:
        prompt = long_prompt(server.url, arguments.prompt_tokens, arguments.max_new_tokens)
        trial = KillTrial(server, exchange, prompt, arguments.max_new_tokens)
        drawn = list(islice(plans(num_ranks, arguments.seed), arguments.kills))
        with company(server.url, arguments.streams - 1, arguments.seed) as load:
            load.answers = others
            for plan in progress(drawn, f"{exchange}, {num_ranks} ranks", unit="kill"):
                yield trial.kill(plan)


def find_failures(
    kills: list[KillResult], others: list[LoadAnswer], outcomes: list[ScenarioResult], left: list[str]
) -> list[str]:
    """A line for each failure."""
    failures = [
        f"{kill.exchange}, {kill.ranks} ranks, rank {kill.victim} killed in {kill.phase} of {kill.kind}: "
        + (kill.error or "not the tokens of the undisturbed stream")
        for kill in kills
        if not kill.is_identical
    ]
    failures += [f"another stream, {answer.question}: {answer.wrong}" for answer in others if answer.wrong]
    failures += [f"{o.exchange}, {o.ranks} ranks, {o.scenario}: {o.seen}" for o in outcomes if not o.passed]
    return failures + [f"left in shared memory: {name}" for name in left]


def describe(
    arguments: argparse.Namespace,
    kills: list[KillResult],
    others: list[LoadAnswer],
    outcomes: list[ScenarioResult],
    failures: list[str],
) -> str:
    columns = ["exchange", "ranks", "phase", "kills", "whole", "same tokens", "gap: median", "maximum", "all back"]
    groups = {(kill.exchange, kill.ranks, kill.phase): [] for kill in kills}
    for kill in kills:
        groups[kill.exchange, kill.ranks, kill.phase].append(kill)
    scenes = [
        (o.scenario, o.exchange, o.ranks, "-" if o.gap_s is None else milliseconds(o.gap_s), o.seen) for o in outcomes
    ]
    parts = [
        f"Streams of {arguments.max_new_tokens} tokens after a prompt of up to {arguments.prompt_tokens}. Greedy "
        "requests, sampled ones with a seed, and greedy ones with log-probabilities take turns. The first rank, the "
        "last and ranks at random are killed with SIGKILL. Gap: the client's longest extra wait for an event after the "
        "kill, beyond what it waits for that event undisturbed. All back: median time from the kill until the "
        "restarted rank serves.",
        markdown_table(columns, [row(*key, killed) for key, killed in sorted(groups.items())], num_text=3),
    ]
    if others:
        right = sum(answer.wrong is None for answer in others)
        parts.append(
            f"Beside each stream, {arguments.streams - 1} other clients asked all the time: {right} of their "
            f"{len(others)} answers were right."
        )
    if scenes:
        parts.append(markdown_table(["scenario", "exchange", "ranks", "gap", "seen"], scenes, num_text=5))
    parts.append(describe_failures(failures))
    return "\n\n".join(parts)


def row(exchange: str, ranks: int, phase: str, kills: list[KillResult]) -> tuple[str, ...]:
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
