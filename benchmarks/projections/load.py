"""Projects many streams on several ranks: LP, DP, elastic groups and TP, on this machine and GPUs.

    python -m benchmarks.projections.load --prompts FOLDER --machines here,h100
    python -m benchmarks.projections.load --prompts FOLDER --ranks 4 --machines here --streams 1,2,4,16,64

FOLDER holds humaneval.jsonl, gsm8k.jsonl and spec_bench.jsonl, as for benchmarks.real_model. The real engine decodes
greedy texts with 1, 4, 8, 32 and 256 streams on ranks that are played: its budget chooses the drafts, and its runner
who computes them, so tokens, rows and their places are exact. The time of a step follows from a curve by rows,
sequences and cached tokens: that of the model on this machine, which is measured, or that of a larger shape on GPUs,
which is modelled (benchmarks/projections/modelled_step.py).

NO SPEED IS MEASURED. The report names all that is supposed.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict
from functools import partial

from tqdm import tqdm

from benchmarks.projections.gpus import GPUS, Gpu
from benchmarks.projections.network import COLLECTIVE_US, Network, add_exchange
from benchmarks.projections.streams import speeds_report
from benchmarks.projections.streams.curves import Machine, modelled_times, tensor_times
from benchmarks.projections.streams.known_answers import KnownAnswers
from benchmarks.projections.streams.systems import (
    ELASTIC,
    ONE_RANK,
    SERVERS,
    Speed,
    elastic_size,
    group_name,
    groups_tokens_per_s,
    speed_of,
    systems_on,
)
from benchmarks.shared.categories import read_categories
from benchmarks.shared.inputs import find_model, load_engine
from benchmarks.shared.options import add_decoded_texts, add_output, add_threads, ascending_numbers, make_parser, parse
from benchmarks.shared.report import publish
from benchmarks.shared.shapes import SHAPES, make_config
from lp import Engine
from lp.methods.auto.host_time import measure_host
from lp.methods.auto.method import Auto
from lp.model.gguf import unpacked_folder
from lp.runner.single_device import SingleDevice
from lp.runner.step_times.calibrate import resolve_step_times
from lp.runner.step_times.measure import StepTimesSource
from lp.step_cost import Extras, StepTimes

HERE = "here"
GPU_NAMES: dict[str, Gpu] = dict(zip(("a100", "h100", "rtx-4090"), GPUS, strict=True))
# The most rows of a step that is measured on this machine.
MOST_ROWS = 256


def main() -> None:
    parser = make_arguments()
    arguments = parse(parser)
    check_arguments(parser, arguments)
    try:
        folder = unpacked_folder(find_model(arguments.model))
    except ValueError as error:
        raise SystemExit(str(error)) from None
    engine = load_engine(folder, arguments.dtype, "cpu", step_times=StepTimesSource.off)
    machines = [make_machine(parser, engine, name, arguments) for name in arguments.machines]
    answers = known_answers(engine, arguments)
    steps, speeds = run_all(engine, machines, answers, arguments)
    notes = notes_on(engine, machines, answers, arguments)
    publish(
        arguments.output,
        f"load_projection-{engine.checkpoint.name}-{arguments.dtype}-{'-'.join(arguments.machines)}",
        f"PROJECTED, not measured: many streams on {arguments.ranks} ranks",
        speeds_report.describe(machines, steps, speeds, arguments.ranks, notes),
        {
            "ranks": arguments.ranks,
            "machines": [asdict(machine) for machine in machines],
            "projected_steps": {name: [asdict(one) for one in found] for name, found in steps.items()},
            "projected_tokens_per_s": speeds,
            "notes": notes,
        },
        speeds_report.plot(speeds, arguments.ranks),
    )


def make_arguments() -> argparse.ArgumentParser:
    parser = make_parser(__doc__)
    add_decoded_texts(parser, limit=28, max_new_tokens=64)
    parser.add_argument("--ranks", type=int, default=8, help="default %(default)s")
    parser.add_argument(
        "--streams", type=ascending_numbers, default=[1, 4, 8, 32, 256], metavar="N,N,...", help="default 1,4,8,32,256"
    )
    parser.add_argument(
        "--machines", type=lambda text: text.split(","), default=[HERE, "h100"], metavar="NAME,NAME,...",
        help=f"{HERE}, or GPUs: {', '.join(GPU_NAMES)} (default {HERE},h100)",
    )  # fmt: skip
    parser.add_argument("--shape", default="llama-3.1-8b", choices=SHAPES, help="on GPUs (default %(default)s)")
    parser.add_argument(
        "--collective-us", type=float, default=COLLECTIVE_US, metavar="US",
        help=f"of a collective of TP {HERE} (default %(default)g, measured in shared memory)",
    )  # fmt: skip
    parser.add_argument("--gb-per-s", type=float, default=10.0, help=f"of each rank's link {HERE} (default 10)")
    add_exchange(parser, "of an exchange of ranks that share trees")
    add_threads(parser)
    add_output(parser)
    return parser


def check_arguments(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> None:
    unknown = [name for name in arguments.machines if name != HERE and name not in GPU_NAMES]
    if unknown:
        parser.error(f"--machines {','.join(unknown)}: there are {', '.join([HERE, *GPU_NAMES])}")
    degrees = sorted({degree for gpu in GPUS for degree in gpu.all_reduce_us})
    if arguments.machines != [HERE] and arguments.ranks not in degrees:
        parser.error(f"--ranks {arguments.ranks}: figures of GPUs are known for {', '.join(map(str, degrees))}")
    if arguments.ranks < 2:
        parser.error("--ranks must be at least 2")
    if min(arguments.collective_us, arguments.exchange_us) < 0 or arguments.gb_per_s <= 0:
        parser.error("--collective-us and --exchange-us must not be negative, --gb-per-s must be positive")


def make_machine(parser: argparse.ArgumentParser, engine: Engine, name: str, arguments: argparse.Namespace) -> Machine:
    """Measures or models the curves of a machine. Ends the program if the model cannot be split."""
    if name == HERE:
        collectives, model = Network(arguments.collective_us, arguments.gb_per_s), engine.checkpoint.model
        one = measured_times(engine)
        try:
            tensor = tensor_times(one, model.model.config, model.dtype, arguments.ranks, collectives)
        except ValueError as error:
            parser.error(f"--ranks {arguments.ranks}: {error}")
        return Machine(HERE, one, tensor, Network(arguments.exchange_us, arguments.gb_per_s))
    gpu: Gpu = GPU_NAMES[name]
    host_step, host_row = measure_host(Auto())
    times = partial(modelled_times, gpu, make_config(SHAPES[arguments.shape]), host=Extras(host_step, host_row))
    return Machine(gpu.name, times(tp=1), times(tp=arguments.ranks), Network(arguments.exchange_us, gpu.link_gb_per_s))


def measured_times(engine: Engine) -> StepTimes:
    """The model's curve on one rank here; one that was measured earlier is used if it still holds."""
    model = engine.checkpoint.model
    times = resolve_step_times(
        StepTimesSource.auto, model, SingleDevice(model), MOST_ROWS, measure_host=lambda: measure_host(Auto())
    )
    assert times is not None
    return times


def known_answers(engine: Engine, arguments: argparse.Namespace) -> KnownAnswers:
    """Decodes the texts. Ends the program if none is long enough."""
    tokenizer, length = engine.checkpoint.tokenizer, engine.checkpoint.max_length
    asked = read_categories(arguments.prompts, arguments.limit)
    prompts = [tokenizer.encode(one.for_model(tokenizer), add_special_tokens=one.question is None) for one in asked]
    fitting = [prompt for prompt in prompts if len(prompt) + arguments.max_new_tokens <= length]
    answers = KnownAnswers(engine.checkpoint, fitting, arguments.max_new_tokens, Auto().candidates)
    if not answers.texts:
        raise SystemExit(
            f"no text has {arguments.max_new_tokens} new tokens within the context of {length} before it ends: use a "
            "smaller --max-new-tokens or other prompts"
        )
    return answers


def notes_on(
    engine: Engine, machines: list[Machine], answers: KnownAnswers, arguments: argparse.Namespace
) -> list[str]:
    """What the report supposes of these texts and machines."""
    prompts = [text.start for text in answers.texts]
    notes = [
        f"{len(prompts)} texts of {engine.checkpoint.name}, {arguments.dtype}, greedy, {arguments.max_new_tokens} new "
        f"tokens; prompts of {min(prompts)} to {max(prompts)} tokens. Texts that end sooner are left out."
    ]
    for machine in machines:
        network = machine.network
        if machine.name == HERE:
            notes.append(
                f"{HERE}: the model's own curve on this machine, measured with {arguments.threads} thread for a rank. "
                f"An exchange takes {network.latency_us:g} us, a collective of TP {arguments.collective_us:g}, and the "
                f"bytes of either as long as {network.gb_per_s:g} GB/s allow. The rest of a step under TP takes as "
                "much less time as the rank with the largest share has weights, which is the best that it could."
            )
        for gpu in [gpu for gpu in GPUS if gpu.name == machine.name]:
            notes.append(
                f"{gpu.name}: nothing is measured; {arguments.shape}, bfloat16, with the texts of the small model. An "
                f"exchange takes {network.latency_us:g} us. {'; '.join(gpu.sources)}."
            )
    return notes


def run_all(
    engine: Engine, machines: list[Machine], answers: KnownAnswers, arguments: argparse.Namespace
) -> tuple[dict[str, list[Speed]], dict[str, dict[int, dict[str, float]]]]:
    """The steps of every system at every number of streams, and tokens per second, both by the machine's name."""
    steps: dict[str, list[Speed]] = {}
    speeds: dict[str, dict[int, dict[str, float]]] = {}
    bar = tqdm(desc="playing", unit="load", total=len(machines) * len(arguments.streams), file=sys.stderr)
    for machine in machines:
        speed = speed_of(engine.checkpoint, answers, systems_on(machine, arguments.ranks))
        steps[machine.name], speeds[machine.name] = [], {}
        for streams in arguments.streams:
            found = [speed(name, streams) for name in speeds_report.SYSTEMS if name not in (SERVERS, ELASTIC)]
            steps[machine.name] += found
            ranks, size = arguments.ranks, elastic_size(arguments.ranks, streams)
            servers = groups_tokens_per_s(partial(speed, ONE_RANK), ranks, streams)
            elastic = groups_tokens_per_s(partial(speed, group_name(size, ranks)), ranks // size, streams)
            groups = {SERVERS: servers, ELASTIC: elastic}
            speeds[machine.name][streams] = {one.system: one.tokens_per_s for one in found} | groups
            bar.update()
    bar.close()
    return steps, speeds


if __name__ == "__main__":
    main()
