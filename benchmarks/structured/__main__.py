"""Measures what a grammar saves in steps and costs in time, on JSON schemas made at random.

    python -m benchmarks.structured --model smollm2

Each prompt asks for an object with some fields; the grammar is its schema. Methods answer it without and with it. The
table has tokens per step of both and their ratio, whether the texts with a grammar are those of plain decoding with it,
how many of those that ended are valid (formats count), and milliseconds of a step that masks and the grammar's drafts
take. Tokens per step are exact; times are this machine's. Exit status 1: a text differs, or is not valid.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple, TypeVar

from benchmarks.shared.inputs import find_model
from benchmarks.shared.options import add_output, add_threads, make_parser, parse
from benchmarks.shared.report import markdown_table, progress, publish
from benchmarks.structured.schemas import Schema, faults, make_schema
from lp import Auto, Autoregressive, Completion, Engine, Grammar, Jacobi, Lookahead, PromptLookup, Sampling, Stopping
from lp.grammar.state import GrammarState, Masks
from lp.request import DecodingMethod
from lp.sampling import batch

METHODS: dict[str, DecodingMethod] = {
    "autoregressive": Autoregressive(),
    "auto": Auto(),
    "prompt_lookup": PromptLookup(),
    "lookahead": Lookahead(),
    "jacobi": Jacobi(),
}
ASK = "Make up a record with the fields {}. Answer with one JSON object."
T = TypeVar("T")


@dataclass
class Figures:
    """What all answers of one method show.

    free_tokens, free_steps: without a grammar. tokens, steps, rows, seconds: with one. proposed, accepted: drafts that
    the grammar made. mask_s, draft_s: of the seconds, those for masks and for dropping and adding drafts. ended, valid,
    same: numbers of answers that ended, that are valid besides, and that are those of plain decoding.
    """

    method: str
    free_tokens: int = 0
    free_steps: int = 0
    tokens: int = 0
    steps: int = 0
    rows: int = 0
    seconds: float = 0.0
    proposed: int = 0
    accepted: int = 0
    mask_s: float = 0.0
    draft_s: float = 0.0
    answers: int = 0
    ended: int = 0
    valid: int = 0
    same: int = 0

    @property
    def free_rate(self) -> float:
        return self.free_tokens / self.free_steps

    @property
    def rate(self) -> float:
        return self.tokens / self.steps

    def add(self, schema: Schema, free: Completion, found: Completion, plain: Completion) -> None:
        self.free_tokens += free.stats.tokens
        self.free_steps += free.stats.steps
        self.tokens += found.stats.tokens
        self.steps += found.stats.steps
        self.rows += found.stats.rows
        self.seconds += found.stats.decode_s
        self.proposed += found.stats.proposed["grammar"]
        self.accepted += found.stats.accepted["grammar"]
        self.answers += 1
        self.same += found.token_ids == plain.token_ids
        if found.finish_reason == "stop":
            self.ended += 1
            self.valid += not faults(schema, json.loads(found.text))


class Stopwatch:
    """Adds up the seconds in some functions while they are watched."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def timed(self, function: Callable[..., T]) -> Callable[..., T]:
        def run(*arguments: Any) -> T:
            begin = time.perf_counter()
            try:
                return function(*arguments)
            finally:
                self.seconds += time.perf_counter() - begin

        return run


@contextmanager
def watching(on: object, names: tuple[str, ...], watch: Stopwatch) -> Iterator[None]:
    before = {name: getattr(on, name) for name in names}
    for name, function in before.items():
        setattr(on, name, watch.timed(function))
    try:
        yield
    finally:
        for name, function in before.items():
            setattr(on, name, function)


def main() -> None:
    arguments = parse_arguments()
    try:
        engine = Engine.from_pretrained(find_model(arguments.model), device=arguments.device)
    except ValueError as error:
        raise SystemExit(str(error)) from None
    schemas = [make_schema(seed) for seed in range(arguments.limit)]
    figures = measure(engine, schemas, arguments.methods, arguments.temperature, arguments.max_new_tokens)
    publish(
        arguments.output,
        f"structured-{engine.checkpoint.name}",
        f"Structured output: {engine.checkpoint.name}, {len(schemas)} schemas, temperature {arguments.temperature:g}",
        table(figures),
        {"figures": [asdict(one) for one in figures]},
    )
    if any(one.same < one.answers or one.valid < one.ended for one in figures):
        raise SystemExit("a text differs from that of plain decoding, or is not what its schema says")


def parse_arguments() -> argparse.Namespace:
    parser = make_parser(__doc__)
    parser.add_argument("--model", default="smollm2", help="smollm2 or a checkpoint folder (default smollm2)")
    parser.add_argument("--device", default="cpu", help="auto, cpu or cuda (default cpu)")
    parser.add_argument(
        "--methods",
        nargs="+",
        choices=METHODS,
        default=list(METHODS),
        metavar="METHOD",
        help=f"of {', '.join(METHODS)}",
    )
    parser.add_argument("--limit", type=int, default=30, help="schemas (default %(default)s)")
    parser.add_argument("--max-new-tokens", type=int, default=200, help="of each answer (default %(default)s)")
    parser.add_argument("--temperature", type=float, default=0.0, help="0 is greedy (default %(default)s)")
    add_threads(parser)
    add_output(parser)
    return parse(parser)


def measure(
    engine: Engine, schemas: list[Schema], methods: list[str], temperature: float, max_new_tokens: int
) -> list[Figures]:
    """The figures of the methods, which take turns."""
    figures = [Figures(name) for name in methods]
    asked = [
        Asked(
            prompt_of(engine, schema),
            Grammar.json_schema(schema),
            Sampling(temperature=temperature, seed=number),
            Stopping(max_new_tokens),
        )
        for number, schema in enumerate(schemas)
    ]
    plain = answer_together(engine, asked)
    for number, schema in enumerate(progress(schemas, "schemas", unit="schema")):
        prompt, grammar, sampling, stopping = asked[number]
        for one in figures:
            of_masks, of_drafts = Stopwatch(), Stopwatch()
            settings: dict[str, Any] = {
                "decode": METHODS[one.method], "sampling": sampling, "stopping": stopping,
            }  # fmt: skip
            free = engine.generate(prompt, **settings)
            with (
                watching(GrammarState, ("masks",), of_masks),
                watching(batch, ("apply_masks",), of_masks),
                watching(Masks, ("fix",), of_masks),
                watching(GrammarState, ("sure", "legal", "push"), of_drafts),
            ):
                found = engine.generate(prompt, grammar=grammar, **settings)
            one.mask_s, one.draft_s = one.mask_s + of_masks.seconds, one.draft_s + of_drafts.seconds
            one.add(schema, free, found, plain[number])
    return figures


class Asked(NamedTuple):
    """One request under a grammar."""

    prompt: Any
    grammar: Grammar
    sampling: Sampling
    stopping: Stopping


def prompt_of(engine: Engine, schema: Schema) -> Any:
    text = ASK.format(", ".join(schema["properties"]))
    return [{"role": "user", "content": text}] if engine.checkpoint.tokenizer.chat_template else text


def answer_together(engine: Engine, asked: list[Asked]) -> list[Completion]:
    """What plain decoding under the grammars yields; all requests share its steps."""
    answers = [Completion() for _ in asked]
    for number, (prompt, grammar, sampling, stopping) in enumerate(asked):
        name = str(number)
        engine.add_request(
            engine.request_builder.build(prompt, Autoregressive(), sampling, stopping, name, grammar=grammar)
        )
    while not engine.is_idle:
        for told in engine.step():
            answers[int(told.request_id)].extend(told)
    return answers


def table(figures: list[Figures]) -> str:
    columns = ["method", "tokens/step without", "with", "ratio", "rows/step", "grammar's drafts right", "same text",
               "valid of ended", "step ms", "masks ms", "drafts ms"]  # fmt: skip
    rows = [
        [
            one.method, f"{one.free_rate:.2f}", f"{one.rate:.2f}", f"{one.rate / one.free_rate:.2f}",
            f"{one.rows / one.steps:.1f}", f"{one.accepted} of {one.proposed}", f"{one.same} of {one.answers}",
            f"{one.valid} of {one.ended}", *(
                f"{1e3 * seconds / one.steps:.2f}" for seconds in (one.seconds, one.mask_s, one.draft_s)
            ),
        ]
        for one in figures
    ]  # fmt: skip
    return markdown_table(columns, rows)


if __name__ == "__main__":
    main()
