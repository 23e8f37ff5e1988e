"""Counts how often greedy texts in 16 bits differ between methods, and how near the ties were.

    python -m benchmarks.half_precision --prompts prompts.jsonl --limit 100 --max-new-tokens 128

In 16 bits the logits of a row depend, by a rounding error, on how many rows are computed with it. Where the two best
tokens are nearer to each other than that, greedy decoding may choose the other one, and the texts part. The benchmark
compares the greedy texts of transformers' `generate`, of autoregressive decoding and of lookahead decoding. The gap is
the best logit minus the second best where two texts part, as transformers computes them in the same precision.
"""

from __future__ import annotations

import statistics
from dataclasses import asdict, dataclass

import torch
from transformers import PreTrainedModel

from benchmarks.shared.decoded_texts import AUTOREGRESSIVE, GENERATE, decode_text, generate_tokens
from benchmarks.shared.inputs import encode, load_engine_and_reference, read_prompts
from benchmarks.shared.options import make_prompts_parser, parse
from benchmarks.shared.report import markdown_table, progress, publish
from lp import Autoregressive, Engine, Lookahead, Sampling
from lp.model.checkpoint import DTYPES
from lp.request import DecodingMethod

METHODS: dict[str, DecodingMethod] = {
    AUTOREGRESSIVE: Autoregressive(),
    "lookahead (7, 5, 7)": Lookahead(7, 5, 7),
    "lookahead (15, 5, 15)": Lookahead(15, 5, 15),
}
# Each text that is compared, and what it is compared with.
PAIRS = [(method, GENERATE) for method in METHODS] + [(method, AUTOREGRESSIVE) for method in list(METHODS)[1:]]


@dataclass
class Parting:
    """Where a text leaves the one that it is compared with.

    prompt, token: their numbers. gap: see above; None if one of the texts merely ends.
    """

    prompt: int
    token: int
    gap: float | None


@dataclass
class TextComparison:
    """The texts of one method compared with those of another."""

    dtype: str
    method: str
    against: str
    num_prompts: int
    partings: list[Parting]


def main() -> None:
    parser = make_prompts_parser(__doc__)
    parser.add_argument(
        "--dtypes",
        nargs="+",
        default=["bfloat16", "float16"],
        choices=DTYPES,
        help="formats of the model (default bfloat16 float16)",
    )
    arguments = parse(parser)
    texts = read_prompts(arguments.prompts, arguments.limit)
    comparisons: list[TextComparison] = []
    median_gaps: dict[str, float] = {}
    for dtype in arguments.dtypes:
        engine, model = load_engine_and_reference(arguments.model, dtype, arguments.device)
        prompts = encode(engine, texts, arguments.max_new_tokens)
        found, median_gaps[dtype] = compare(engine, model, prompts, dtype, arguments.max_new_tokens)
        comparisons += found
    publish(
        arguments.output,
        f"half_precision-{engine.checkpoint.name}",
        f"Greedy texts in 16 bits: {engine.checkpoint.name}",
        describe(comparisons, median_gaps, arguments.max_new_tokens),
        {"comparisons": [asdict(comparison) for comparison in comparisons], "median_gap": median_gaps},
    )


def compare(
    engine: Engine, model: PreTrainedModel, prompts: list[list[int]], dtype: str, max_new_tokens: int
) -> tuple[list[TextComparison], float]:
    """The comparison of each of PAIRS, and the median gap over all positions of all texts."""
    comparisons = {pair: TextComparison(dtype, *pair, len(prompts), []) for pair in PAIRS}
    gaps: list[float] = []
    for number, prompt in enumerate(progress(prompts, dtype)):
        texts = {GENERATE: generate_tokens(model, prompt, max_new_tokens=max_new_tokens, do_sample=False)}
        for name, decode in METHODS.items():
            texts[name] = decode_text(engine, prompt, decode, Sampling(temperature=0.0), max_new_tokens).tokens
        known = {name: gaps_of(model, prompt, texts[name]) for name in (GENERATE, AUTOREGRESSIVE)}
        gaps += known[GENERATE]
        for (method, against), comparison in comparisons.items():
            at = first_difference(texts[method], texts[against])
            if at is not None:
                gap = known[against][at] if at < len(texts[against]) else None
                comparison.partings.append(Parting(number, at, gap))
    return list(comparisons.values()), statistics.median(gaps)


@torch.inference_mode()
def gaps_of(model: PreTrainedModel, prompt: list[int], text: list[int]) -> list[float]:
    """The best logit minus the second best, for each token of the text."""
    inputs = torch.tensor([prompt + text[:-1]], device=model.device)
    best = model(inputs, logits_to_keep=len(text)).logits[0].float().topk(2).values
    return (best[:, 0] - best[:, 1]).tolist()


def first_difference(text: list[int], other: list[int]) -> int | None:
    """The index of the first token that differs, or the end of the shorter text; None if the texts are the same."""
    if text == other:
        return None
    pairs = enumerate(zip(text, other))
    return next((at for at, (one, two) in pairs if one != two), min(len(text), len(other)))


def describe(comparisons: list[TextComparison], median_gaps: dict[str, float], max_new_tokens: int) -> str:
    columns = ["dtype", "text of", "against", "differ", "rate", "median gap", "largest gap", "median token"]
    rows = []
    for comparison in comparisons:
        partings = comparison.partings
        gaps = [parting.gap for parting in partings if parting.gap is not None]
        rows.append(
            (
                comparison.dtype,
                comparison.method,
                comparison.against,
                f"{len(partings)}/{comparison.num_prompts}",
                f"{len(partings) / comparison.num_prompts:.1%}",
                f"{statistics.median(gaps):.4f}" if gaps else "-",
                f"{max(gaps):.4f}" if gaps else "-",
                f"{statistics.median(parting.token for parting in partings):.0f}" if partings else "-",
            )
        )
    usual = ", ".join(f"{gap:.2f} in {dtype}" for dtype, gap in median_gaps.items())
    return (
        f"Up to {max_new_tokens} new tokens for each prompt. Gap: the best logit minus the second best where two "
        f"texts part; its median over all tokens is {usual}. Token: the index at which they part.\n\n"
        + markdown_table(columns, rows, num_text=3)
    )


if __name__ == "__main__":
    main()
