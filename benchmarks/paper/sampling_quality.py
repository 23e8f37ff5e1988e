"""Checks by ROUGE that lookahead decoding does not change what is sampled.

    python -m benchmarks.paper.sampling_quality [--workload cnn_dailymail --prompts cnn.jsonl]

This is the comparison of arXiv 2402.02057, table 2. At each temperature it compares plain sampling, sampling by
lookahead decoding with the same seeds, and transformers' own sampling (with other random numbers), by ROUGE F1 against
reference summaries. In float32 the first two must give the same texts; otherwise the exit status is 1.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from benchmarks.paper.rouge import KINDS, rouge
from benchmarks.shared.decoded_texts import AUTOREGRESSIVE, GENERATE, decode_text, generate_tokens
from benchmarks.shared.inputs import encode, load_engine_and_reference, read_problems
from benchmarks.shared.options import make_prompts_parser, parse
from benchmarks.shared.report import markdown_table, progress, publish
from launch.data.workloads import OWN, Problem, WorkloadSettings
from lp import Autoregressive, Engine, Lookahead, Sampling
from lp.request import DecodingMethod

OURS: dict[str, DecodingMethod] = {AUTOREGRESSIVE: Autoregressive(), "lookahead (15, 5, 15)": Lookahead(15, 5, 15)}


@dataclass
class SampledTexts:
    """All texts of one method at one temperature."""

    method: str
    temperature: float
    tokens: int = 0
    steps: int = 0
    seconds: float = 0.0
    texts: list[str] = field(default_factory=list)

    @property
    def tokens_per_s(self) -> float:
        return self.tokens / self.seconds


def main() -> None:
    parser = make_prompts_parser(__doc__)
    parser.add_argument("--workload", default="own", help="data set that --prompts holds (default: our own workload)")
    parser.add_argument(
        "--temperatures", type=float, nargs="+", default=[0.0, 1.0], help="0 is greedy decoding (default 0 1)"
    )
    arguments = parse(parser)
    settings = WorkloadSettings(arguments.workload, arguments.prompts, max_new_tokens=arguments.max_new_tokens)
    problems = [problem for problem in read_problems(settings) if is_summary(problem)]
    if not (problems := problems[: arguments.limit]):
        raise SystemExit("no problem of this workload has a reference to compare with")
    references = [problem.reference or "" for problem in problems]
    engine, model = load_engine_and_reference(arguments.model, "float32", arguments.device)
    prompts = encode(engine, [problem.prompt for problem in problems], arguments.max_new_tokens)
    found: list[SampledTexts] = []
    for temperature in arguments.temperatures:
        found += sample_all(engine, model, prompts, temperature, arguments.max_new_tokens)
    differing = different_texts(found)
    publish(
        arguments.output,
        f"sampling_quality-{engine.checkpoint.name}",
        f"Sampling by lookahead decoding against plain sampling: {engine.checkpoint.name}, float32",
        describe(found, references, arguments.max_new_tokens),
        {"rows": [{**asdict(row), **rouge(row.texts, references)} for row in found]},
    )
    if differing:
        raise SystemExit(
            f"{differing} texts of lookahead decoding differ from those of plain sampling; all must be the same"
        )


def is_summary(problem: Problem) -> bool:
    """Whether a problem has a reference summary. Our own workload also has problems of other kinds."""
    return problem.reference is not None and (problem.category == "summary" or not problem.where.startswith(str(OWN)))


def sample_all(
    engine: Engine, model: Any, prompts: list[list[int]], temperature: float, max_new_tokens: int
) -> list[SampledTexts]:
    """The texts of each method. The methods take turns on every prompt, and the prompt's number is its seed."""
    rows = [SampledTexts(name, temperature) for name in (*OURS, GENERATE)]
    for seed, prompt in enumerate(progress(prompts, f"temperature {temperature:g}")):
        for row in rows:
            begin = time.perf_counter()
            if row.method in OURS:
                sampling = Sampling(temperature=temperature, top_k=0, top_p=1.0, min_p=0.0, seed=seed)
                text = decode_text(engine, prompt, OURS[row.method], sampling, max_new_tokens)
                tokens, steps = text.tokens, text.steps
            else:
                tokens = _by_transformers(model, prompt, temperature, seed, max_new_tokens)
                steps = len(tokens)
            row.seconds += time.perf_counter() - begin
            row.tokens += len(tokens)
            row.steps += steps
            row.texts.append(engine.checkpoint.tokenizer.decode(tokens, skip_special_tokens=True))
    return rows


def _by_transformers(model: Any, prompt: list[int], temperature: float, seed: int, max_new_tokens: int) -> list[int]:
    torch.manual_seed(seed)
    sampling = {"do_sample": True, "temperature": temperature, "top_k": 0} if temperature else {"do_sample": False}
    return generate_tokens(model, prompt, max_new_tokens=max_new_tokens, **sampling)


def different_texts(rows: list[SampledTexts]) -> int:
    """The number of texts of lookahead decoding that differ from plain sampling at the same temperature."""
    plain = {row.temperature: row.texts for row in rows if row.method == AUTOREGRESSIVE}
    ours = [row for row in rows if row.method in OURS]
    return sum(a != b for row in ours for a, b in zip(row.texts, plain[row.temperature], strict=True))


def describe(rows: list[SampledTexts], references: list[str], max_new_tokens: int) -> str:
    plain = {row.temperature: row.tokens_per_s for row in rows if row.method == AUTOREGRESSIVE}
    columns = ["method", "temperature", *KINDS.values(), "tokens per step", "speed-up"]
    table = [
        [
            row.method,
            f"{row.temperature:g}",
            *(f"{score:.1f}" for score in rouge(row.texts, references).values()),
            f"{row.tokens / row.steps:.2f}",
            f"{row.tokens_per_s / plain[row.temperature]:.2f}x",
        ]
        for row in rows
    ]
    intro = (
        f"{len(references)} problems with a reference, up to {max_new_tokens} new tokens each. ROUGE F1 in percent; "
        "speed-up over autoregressive decoding at the same temperature, in the same run. The demo model was trained on "
        "code alone, so its scores are low; what counts is that the methods agree."
    )
    return "\n\n".join([intro, markdown_table(columns, table)])


if __name__ == "__main__":
    main()
