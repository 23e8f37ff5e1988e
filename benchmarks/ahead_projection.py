"""Projects drafting ahead on 2, 4 and 8 devices which each have a memory of their own.

    python -m benchmarks.ahead_projection --prompts FOLDER --limit 7

FOLDER holds humaneval.jsonl, gsm8k.jsonl and spec_bench.jsonl, as for benchmarks.real_model. One process plays all
ranks: the real model decodes greedy texts of all categories, and one that verifies and others that draft ahead with a
copy of the model in 8 or 4 bits do what real ranks do (benchmarks/projections/played_drafting.py). So trees, drafts and
tokens per step are exact. The time of a step follows from tables of step times: those of this machine, which are
measured on one rank, and those that one H100 has shown for a model of 8B and its copy in 4 bits.
It takes as long as verification or the slowest rank that drafts, and an exchange.

NO SPEED IS MEASURED. Drafting ahead is compared with one rank, and with ranks that share trees (lp), the model (tp), or
both; and with what chains of drafts would yield at best (benchmarks/projections/ideal_drafts.py).
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedConfig

from benchmarks.projections.clocked_steps import ClockedStep, ClockedTotals, DeviceTimes, StepClock
from benchmarks.projections.gpus import GPUS, H100_MS, H100_SHAPE
from benchmarks.projections.ideal_drafts import (
    BEFORE,
    FREE,
    LONGEST,
    MEANWHILE,
    ChainTimes,
    Ideal,
    ideals,
    places_of,
    right_by_depth,
)
from benchmarks.projections.network import COLLECTIVE_US, Network, add_exchange
from benchmarks.projections.played_drafting import (
    AllPlaces,
    KnownPrompts,
    PlayedAuto,
    PreparedRank,
    VerifyingRank,
    VerifyingRanks,
)
from benchmarks.projections.streams.curves import shared_times, tensor_times, with_exchange
from benchmarks.shared.categories import ALL, CategoryPrompt, read_categories
from benchmarks.shared.inputs import encode, find_model
from benchmarks.shared.options import add_decoded_texts, add_output, add_threads, make_parser, parse
from benchmarks.shared.report import bullets, markdown_table, progress, publish
from benchmarks.shared.shapes import SHAPES, make_config, read_config
from lp import Auto, Autoregressive, Engine, Sampling, Stopping
from lp.kv_cache.cache import KVCache
from lp.methods.auto.host_time import measure_host
from lp.model.causal import CausalModel
from lp.model.checkpoint import Checkpoint, ModelSettings, load
from lp.model.extensions import ROUND_ROWS
from lp.model.fast_forward import SequenceRows
from lp.model.gguf import unpacked_folder
from lp.model.quantization.quantize import Weights
from lp.model.second_model import DRAFT, SecondModel, SecondModelExtension
from lp.platform.processor import processor_name
from lp.request import DecodingMethod
from lp.runner.single_device import SingleDevice
from lp.runner.step_times.calibrate import resolve_step_times
from lp.runner.step_times.measure import StepTimesSource, measure_relative_costs
from lp.step_cost import Extras, StepCost, StepTimes
from lp.trace import LETTERS, StepTrace
from lp.tree import chain

NUM_DEVICES = (2, 4, 8)
# Devices: cores like those of this machine, and GPUs.
HERE, H100 = "here", "h100"
GPU = GPUS[1]
# The most rows by which times are looked up.
MOST_ROWS = 256
# GB/s between ranks on this machine's devices, which would have a link each.
GB_PER_S = 10.0
# The letter of the copy's drafts in traces.
DRAFTED = {LETTERS["draft_model"], LETTERS["draft_ahead"]}
GREEDY = Sampling(temperature=0.0, seed=0)


@dataclass(frozen=True)
class Way:
    """A way of using devices. lp: replicas that share trees. tp: devices that hold a replica together. ahead: devices
    that draft ahead. has_copy: whether a copy drafts at all; without devices for it, before each step.
    """

    lp: int = 1
    tp: int = 1
    ahead: int = 0
    has_copy: bool = False

    @property
    def num_devices(self) -> int:
        return self.lp * self.tp + self.ahead


AUTO, SELF = "`auto`", "`auto`, copy drafts before steps"


def ahead_name(verifying: int, drafting: int, by: str = "") -> str:
    verify = f"{by}{verifying} verif{'ies' if verifying == 1 or by else 'y'}"
    return f"{verify}, {drafting} draft{'s' * (drafting == 1)} ahead"


WAYS = {
    AUTO: Way(),
    SELF: Way(has_copy=True),
    **{f"lp={number}": Way(lp=number) for number in NUM_DEVICES},
    **{f"tp={number}": Way(tp=number) for number in NUM_DEVICES},
    **{f"lp=2 x tp={number}": Way(lp=2, tp=number) for number in (2, 4)},
    **{f"lp={number}, copy drafts before steps": Way(lp=number, has_copy=True) for number in NUM_DEVICES},
    **{f"tp={number}, copy drafts before steps": Way(tp=number, has_copy=True) for number in NUM_DEVICES},
    **{ahead_name(1, number - 1): Way(ahead=number - 1, has_copy=True) for number in NUM_DEVICES},
    **{ahead_name(lp, 4 - lp): Way(lp=lp, ahead=4 - lp, has_copy=True) for lp in (2, 3)},
    **{ahead_name(tp, tp, "tp="): Way(tp=tp, ahead=tp, has_copy=True) for tp in (2, 4)},
}


@dataclass(frozen=True)
class Machine:
    """Devices, and the weights of the copy. tensor: curves by the degree of tensor parallelism, as far as the model can
    be split. copies_s: by the same degrees, of the copy if it is split alike; see DeviceTimes.copy_s.
    """

    devices: str
    copy: str
    tensor: Mapping[int, StepTimes]
    copies_s: Mapping[int, tuple[float, ...]]
    exchange_s: float

    @property
    def name(self) -> str:
        return f"{self.devices}, copy in {self.copy}"

    def times(self, way: Way) -> DeviceTimes:
        """The times of a replica."""
        exchange_s = self.exchange_s if way.num_devices > 1 else 0.0
        return DeviceTimes(with_exchange(self.tensor[way.tp], exchange_s), self.copies_s[1], exchange_s)

    @property
    def plain_s(self) -> float:
        """Seconds of a plain step on one device."""
        return self.times(Way()).plain_s

    @property
    def relative_costs(self) -> tuple[float, ...]:
        """The costs of the copy's rounds on one device; see SecondText."""
        return self.times(Way()).relative_costs

    @property
    def ways(self) -> dict[str, Way]:
        return {name: way for name, way in WAYS.items() if way.tp in self.tensor}

    def chain_times(self, tp: int) -> ChainTimes:
        """tp: devices that hold the model, and as many the copy."""
        cost = StepCost(self.tensor[tp], 1 + LONGEST)
        steps_s = [cost.plain_s, *(cost.step_s(1 + length, 0) for length in range(1, 1 + LONGEST))]
        return ChainTimes(steps_s, self.copies_s[tp][0], self.exchange_s)

    def ideals(self, texts: Sequence[Sequence[int]]) -> dict[str, Ideal]:
        """What chains yield at best. texts: see `right_by_depth`."""
        found = ideals(texts, self.chain_times(1))
        for tp in self.tensor:
            if tp > 1:
                split = ideals(texts, self.chain_times(tp))
                found[f"{BEFORE}, both under tp={tp}"] = split[BEFORE]
                found[f"{MEANWHILE}, both under tp={tp}"] = split[MEANWHILE]
        return found


@dataclass(frozen=True)
class Found:
    """What was found of a way: totals by category, the share of its steps that have drafts of the copy, and the number
    of these drafts in such a step.
    """

    totals: dict[str, ClockedTotals]
    covered: float
    drafts: float
    same_text: int


def main() -> None:
    parser = make_parser(__doc__)
    add_decoded_texts(parser, limit=7, max_new_tokens=48)
    parser.set_defaults(dtype="float32")
    add_exchange(parser, "an exchange takes")
    parser.add_argument("--devices", nargs="+", default=[HERE, H100], choices=[HERE, H100], help="default: %(default)s")
    parser.add_argument(
        "--copies", nargs="+", type=Weights, default=[Weights.int8, Weights.int4], metavar="WEIGHTS",
        help="of the model here: int8, int4 or both (default)",
    )  # fmt: skip
    parser.add_argument("--most-devices", type=int, default=8, help="of a way (default %(default)s)")
    parser.add_argument("--max-rows", type=int, default=32, help="of a tree, at most (default %(default)s)")
    add_threads(parser)
    add_output(parser)
    arguments = parse(parser)
    try:
        folder = unpacked_folder(find_model(arguments.model))
    except ValueError as error:
        raise SystemExit(str(error)) from None
    asked = read_categories(arguments.prompts, arguments.limit)
    host, found = measure_host(Auto()), dict[str, dict[str, Found]]()
    results, parts = dict[str, Any](), list[str]()
    for weights in arguments.copies:
        checkpoint = load_with_copy(folder, arguments.dtype, weights)
        texts = decode_plainly(checkpoint, asked, arguments.max_new_tokens)
        for machine in machines_of(checkpoint, folder, weights, Extras(*host), arguments):
            # Ways without a copy do not depend on it.
            of_devices = found.setdefault(machine.devices, {})
            missing = [
                name
                for name, way in machine.ways.items()
                if way.num_devices <= arguments.most_devices and (way.has_copy or name not in of_devices)
            ]
            of_devices |= {
                name: decode_by(machine, name, checkpoint, texts, arguments.max_rows)
                for name in progress(missing, machine.name, "way")
            }
            parts.append(describe(machine, texts, of_devices))
            results[machine.name] = {
                "machine": asdict(machine),
                "found": {name: asdict(one) for name, one in of_devices.items()},
                "ideals": {name: asdict(one) for name, one in machine.ideals(all_places(texts)).items()},
            }
            # After each machine, so that a run that is stopped leaves something.
            publish(
                arguments.output,
                f"ahead_projection-{Path(folder).name}-{arguments.dtype}-{'-'.join(arguments.devices)}"
                + f"-{arguments.copies[0]}" * (len(arguments.copies) == 1),
                "PROJECTED, not measured: drafting ahead on 2, 4 and 8 devices",
                "\n\n".join([bullets(notes(asked, arguments)), *parts]),
                {"machines": results},
            )


# Machines


def load_with_copy(folder: str, dtype: str, weights: Weights) -> Checkpoint:
    extension = SecondModelExtension(DRAFT, SecondModel(weights=weights), holds_all=True)
    return load(ModelSettings(folder, dtype, "cpu"), extensions=[extension])


def machines_of(
    checkpoint: Checkpoint, folder: str, weights: Weights, host: Extras, arguments: argparse.Namespace
) -> list[Machine]:
    """Cores as this one with a copy in 8 bits, and GPUs with drafts of either copy. host: its work for a step."""
    found, exchange_s = list[Machine](), arguments.exchange_us * 1e-6
    if HERE in arguments.devices and weights is Weights.int8:
        found.append(measured_machine(checkpoint, folder, weights, exchange_s))
    if H100 in arguments.devices:
        found.append(gpu_machine(weights, host, exchange_s))
    return found


def measured_machine(checkpoint: Checkpoint, folder: str, weights: Weights, exchange_s: float) -> Machine:
    model, copy = checkpoint.model, checkpoint.extensions[DRAFT].model
    assert copy is not None
    runner = SingleDevice(model)
    one = resolve_step_times(
        StepTimesSource.measure, model, runner, Auto().most_rows(), ["played", 1], measure_host=Auto().measure_host
    )
    assert one is not None
    costs = measure_relative_costs(runner, model, copy, lambda wanted: wanted)
    networks = {number: Network(COLLECTIVE_US, GB_PER_S) for number in NUM_DEVICES}
    copy_s = [cost * StepCost(one, 1).plain_s for cost in costs]
    devices = f"{checkpoint.name} on cores of an {processor_name()}"
    return split_machine(devices, weights, one, copy_s, read_config(folder), model.dtype, networks, exchange_s)


def gpu_machine(weights: Weights, host: Extras, exchange_s: float) -> Machine:
    """H100s with the measured times of a model and its copy in int4. weights: of the small copy whose drafts are right
    as often.
    """
    one, copy = (StepTimes(tuple(ms), tuple(1e-3 * one for one in ms.values())) for ms in H100_MS.values())
    copy_s = [copy.at(num_rows) for num_rows in ROUND_ROWS]
    networks = {number: Network(GPU.all_reduce_us[number], GPU.link_gb_per_s) for number in NUM_DEVICES}
    config = make_config(SHAPES[H100_SHAPE])
    return split_machine(
        f"{H100_SHAPE} on {GPU.name}", f"int4, drafts as of a small model's in {weights}",
        replace(one, extras=host), copy_s, config, torch.bfloat16, networks, exchange_s,
    )  # fmt: skip


def split_machine(
    devices: str, copy: str, one: StepTimes, copy_s: Sequence[float], config: PreTrainedConfig, dtype: torch.dtype,
    networks: Mapping[int, Network], exchange_s: float,
) -> Machine:  # fmt: skip
    """A machine by the times of one device. networks: between devices that hold a model together, by their number."""
    tensor, copies_s, rounds = {1: one}, {1: tuple(copy_s)}, StepTimes(ROUND_ROWS, tuple(copy_s))
    for degree, network in networks.items():
        try:
            tensor[degree] = tensor_times(one, config, dtype, degree, network)
            copies_s[degree] = tensor_times(rounds, config, dtype, degree, network).seconds
        except ValueError:  # it cannot be split so
            break
    return Machine(devices, copy, tensor, copies_s, exchange_s)


# Texts


@dataclass(frozen=True)
class PlainText:
    """A prompt, its keys and values but for its last token, its greedy text, and the places of its tokens (see
    `places_of`).
    """

    category: str
    prompt: list[int]
    cache: KVCache
    tokens: list[int]
    places: list[int]


def decode_plainly(checkpoint: Checkpoint, asked: Sequence[CategoryPrompt], length: int) -> list[PlainText]:
    model, copy = checkpoint.model, checkpoint.extensions[DRAFT].model
    assert copy is not None
    caches = dict[tuple[int, ...], KVCache]()
    engine = Engine(checkpoint, PreparedRank(model, caches))
    prompts = encode(engine, [one.for_model(checkpoint.tokenizer) for one in asked], length)
    found = list[PlainText]()
    for one, prompt in zip(asked, progress(prompts, "plain decoding"), strict=True):
        caches[tuple(prompt)] = cache = compute_prompt(model, prompt)
        tokens = engine.generate(prompt, decode=Autoregressive(), sampling=GREEDY, stopping=Stopping(length)).token_ids
        if len(tokens) > 1:  # the first one is that of the prompt's step, which is not counted
            found.append(PlainText(one.category, prompt, cache, tokens, places_of(copy, cache, prompt[-1], tokens)))
    return found


@torch.inference_mode()
def compute_prompt(model: CausalModel, prompt: Sequence[int]) -> KVCache:
    """The keys and values of a prompt but for its last token."""
    cache = model.make_cache(len(prompt))
    for begin in range(0, len(prompt) - 1, model.prefill_chunk):
        part = prompt[begin:-1][: model.prefill_chunk]
        model.forward_many([SequenceRows(chain(part), cache, 0)])
        cache.keep(range(len(part)))
    return cache


def make_engine(
    machine: Machine, way: Way, checkpoint: Checkpoint, prompts: KnownPrompts, max_rows: int
) -> tuple[Engine, StepClock, DecodingMethod]:
    """An engine whose ranks are played, its clock, and its decoding method."""
    times, extension = machine.times(way), checkpoint.extensions[DRAFT]
    clock, cost = StepClock(times), StepCost(times.step, MOST_ROWS)
    extension.relative_costs = times.relative_costs
    if way.lp > 1:
        runner = VerifyingRanks(checkpoint.model, way.lp, prompts, clock, cost, way.ahead)
        step_times = shared_times(machine.tensor[way.tp], way.lp, times.exchange_s)
    else:
        runner, step_times = VerifyingRank(checkpoint.model, prompts, clock, cost, way.ahead), times.step
    engine = Engine(checkpoint, runner, step_times=step_times)
    engine.planner = AllPlaces(engine.planner, checkpoint.max_length, clock)
    if not way.has_copy:
        return engine, clock, Auto(model_drafts=False, max_rows=max_rows)
    return engine, clock, PlayedAuto.on(clock, prompts, way.ahead, way.lp > 1, max_rows)


def decode_by(machine: Machine, name: str, checkpoint: Checkpoint, texts: Sequence[PlainText], max_rows: int) -> Found:
    prompts = {tuple(text.prompt): text.cache for text in texts}
    engine, clock, decode = make_engine(machine, machine.ways[name], checkpoint, prompts, max_rows)
    steps, traced, same_text = dict[str, list[tuple[int, list[ClockedStep]]]](), list[StepTrace](), 0
    for text in texts:
        clock.begin_text()
        done = engine.generate(
            text.prompt, decode=decode, sampling=GREEDY, stopping=Stopping(len(text.tokens)), trace=True
        )
        steps.setdefault(text.category, []).append((len(done.token_ids), clock.steps))
        traced += done.trace[1:]
        same_text += done.token_ids == text.tokens
    numbers = [sum(letter in DRAFTED for letter in step.sources) for step in traced]
    covered = sum(number > 0 for number in numbers)
    totals = {category: ClockedTotals.of(own) for category, own in steps.items()}
    totals[ALL] = ClockedTotals.of([one for own in steps.values() for one in own])
    return Found(totals, covered / len(traced), sum(numbers) / max(1, covered), same_text)


def all_places(texts: Sequence[PlainText]) -> list[list[int]]:
    """Without the first token of each, which the prompt's step yields."""
    return [text.places[1:] for text in texts]


# Results


def notes(asked: Sequence[CategoryPrompt], arguments: argparse.Namespace) -> list[str]:
    return [
        "**PROJECTED. No two devices have run any of this.**",
        f"{len(asked)} prompts, up to {arguments.max_new_tokens} new tokens each, greedy; trees of at most "
        f"{arguments.max_rows} rows. The steps that compute the prompts are left out.",
        "Trees, drafts and tokens per step: exact, of a small model and its copy. The time of a step: by tables, for "
        "devices that do not share a memory.",
        "A step takes as long as the model or the slowest rank that drafts meanwhile, and the exchange, "
        f"{arguments.exchange_us:g} us. Choosing candidates and planning during a step are left out; the host's work "
        "for a step was measured here.",
        f"{GPU.name}: times of {H100_SHAPE} in bfloat16 and of its copy in int4 are those of one H100 "
        f"(benchmarks/results/gpu-speed-h100.md); {'; '.join(GPU.sources[1:])}.",
        "How often such a copy is right was not measured. A small model's copies in int4 and in int8 stand for it: "
        "copies of larger models in int4 are right more often than the former and less often than the latter.",
        "tp: products take as much less time as a rank has fewer weights, which is the best that they could.",
        "Covered: steps that begin where the copy has drafted. Drafting: ranks that draft during a step, on average. "
        "Waiting: the share of the time in which the rank that verifies waits for drafts.",
        "Chains: of the copy alone, without trees and other drafts, replayed on the same texts (see ideal_drafts.py).",
    ]


def describe(machine: Machine, texts: Sequence[PlainText], found: Mapping[str, Found]) -> str:
    same = min(one.same_text for one in found.values())
    rights = ", ".join(f"{share:.2f}" for share in right_by_depth(all_places(texts), LONGEST))
    with_copy = {name: one for name, one in found.items() if machine.ways[name].has_copy}
    ideal = machine.ideals(all_places(texts))
    return "\n\n".join(
        [
            f"## PROJECTED: {machine.name}",
            f"{_describe_times(machine)} Texts as plain decoding gives them, at least: {same} of {len(texts)}.",
            _table_of_ways(machine, found),
            "The fastest of each kind, over plain decoding on one device:",
            _table_of_kinds(machine, found),
            "Speed over plain decoding by category:",
            _table_of_categories(machine.plain_s, with_copy),
            f"The copy's first choices are right in so many cases, if all before them were, at depth 1 to {LONGEST}: "
            f"{rights}. Chains of them, each of the best length:",
            _table_of_chains(machine.plain_s, ideal),
            f"Gain over {SELF}, and its share of that of chains over chains that one rank drafts before its steps:",
            _table_of_gains(machine, found, ideal),
        ]
    )


def _describe_times(machine: Machine) -> str:
    steps = ", ".join(f"{rows}: {1e3 * machine.tensor[1].at(rows):.2f}" for rows in (1, 4, 8, 16, 32, 64))
    costs = ", ".join(f"{rows}: {cost:.2f}" for rows, cost in zip(ROUND_ROWS, machine.relative_costs, strict=True))
    return f"Milliseconds of a step by rows: {steps}. Forwards of the copy by rows, in plain steps: {costs}."


def _table_of_ways(machine: Machine, found: Mapping[str, Found]) -> str:
    base, rows = found[SELF].totals[ALL].tokens_per_s, []
    for name, one in found.items():
        way, total = machine.ways[name], one.totals[ALL]
        figures = [f"{total.tokens_per_step:.2f}", f"{1e3 * total.seconds / total.steps:.2f}"]
        figures += [f"{total.tokens_per_s * machine.plain_s:.2f}x", f"{total.tokens_per_s / base:.2f}x"]
        figures += [f"{one.covered:.0%}", f"{one.drafts:.1f}"] if way.has_copy else ["-", "-"]
        figures += [f"{total.drafting:.1f}", f"{total.waiting:.0%}"] if way.ahead else ["-", "-"]
        rows.append((name, way.num_devices, *figures))
    columns = ["way", "devices", "tokens/step", "PROJECTED ms/step", "over plain", "over one device's copy"]
    return markdown_table([*columns, "covered", "drafts", "drafting", "waiting"], rows)


def _table_of_kinds(machine: Machine, found: Mapping[str, Found]) -> str:
    """The fastest way of each kind by the number of devices."""

    def kind_of(way: Way) -> str:
        verifies = " x ".join(name for name, degree in (("lp", way.lp), ("tp", way.tp)) if degree > 1)
        if way.ahead:
            return f"{verifies or 'one'} verif{'y' if way.lp > 1 else 'ies'}, others draft ahead"
        return f"{verifies or 'one device'}{', copy drafts before steps' * way.has_copy}"

    best = dict[str, dict[int, float]]()
    for name, one in found.items():
        way, speed = machine.ways[name], one.totals[ALL].tokens_per_s * machine.plain_s
        own = best.setdefault(kind_of(way), {})
        own[way.num_devices] = max(speed, own.get(way.num_devices, 0.0))
    columns = [1, *NUM_DEVICES]
    rows = [
        (kind, *(f"{own[number]:.2f}x" if number in own else "-" for number in columns)) for kind, own in best.items()
    ]
    return markdown_table(
        ["PROJECTED over plain", *(f"{number} device{'s' * (number > 1)}" for number in columns)], rows
    )


def _table_of_categories(plain_s: float, found: Mapping[str, Found]) -> str:
    categories = next(iter(found.values())).totals
    rows = [
        (category, *(f"{one.totals[category].tokens_per_s * plain_s:.2f}x" for one in found.values()))
        for category in categories
    ]
    return markdown_table(["category", *found], rows)


def _table_of_chains(plain_s: float, ideal: Mapping[str, Ideal]) -> str:
    before_s = ideal[BEFORE].token_s
    rows = [
        (name, one.length, f"{plain_s / one.token_s:.2f}x", f"{before_s / one.token_s:.2f}x")
        for name, one in ideal.items()
    ]
    return markdown_table(["chains", "length", "PROJECTED over plain", "over chains drafted before"], rows)


def _table_of_gains(machine: Machine, found: Mapping[str, Found], ideal: Mapping[str, Ideal]) -> str:
    base, rows = found[SELF].totals[ALL].tokens_per_s, []
    for name, one in found.items():
        if machine.ways[name].ahead:
            gain = one.totals[ALL].tokens_per_s / base - 1
            shares = [gain / (ideal[BEFORE].token_s / ideal[best].token_s - 1) for best in (MEANWHILE, FREE)]
            rows.append((name, machine.ways[name].num_devices, f"{gain:+.0%}", *(f"{share:.0%}" for share in shares)))
    return markdown_table(["way", "devices", "PROJECTED gain", f"share of {MEANWHILE}", f"share of {FREE}"], rows)


if __name__ == "__main__":
    main()
