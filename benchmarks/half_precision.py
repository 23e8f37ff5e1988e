"""How often 16-bit texts differ from plain decoding in the same precision, and how near the tie was where they part.

    python -m benchmarks.half_precision --prompts prompts.jsonl --limit 100 --max-new-tokens 128

In 16 bits the logits of a row depend on how many rows are computed with it, by a rounding error. Where the two best
tokens are nearer than that, greedy decoding may choose the other one, and the texts part. Compared are the greedy texts
of transformers' `generate`, of autoregressive decoding and of lookahead decoding. The gap is the best logit less the
second best, by transformers in the same precision, where two texts part.
"""

from __future__ import annotations

import statistics
from dataclasses import asdict, dataclass

import torch
from transformers import PreTrainedModel

from benchmarks.shared.report import (
    encode,
    generate,
    load_both,
    make_parser,
    markdown_table,
    progress,
    publish,
    read_prompts,
)
from lp import Autoregressive, Engine, Lookahead, Sampling, Stopping
from lp.methods import DecodeSettings
from lp.model.checkpoint import DTYPES

METHODS: dict[str, DecodeSettings] = {
    "autoregressive": Autoregressive(),
    "lookahead (7, 5, 7)": Lookahead(7, 5, 7),
    "lookahead (15, 5, 15)": Lookahead(15, 5, 15),
}
GENERATE = "transformers generate"
PAIRS = [(method, GENERATE) for method in METHODS] + [(method, "autoregressive") for method in list(METHODS)[1:]]


@dataclass
class Parting:
    """Where a text leaves the one it is compared with. gap: None if one of them merely ends."""

    prompt: int
    token: int
    gap: float | None


@dataclass
class Comparison:
    """Texts of one method against those of another."""

    dtype: str
    method: str
    against: str
    num_prompts: int
    partings: list[Parting]


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--dtypes", nargs="+", default=["bfloat16", "float16"], choices=DTYPES)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    texts = read_prompts(arguments.prompts, arguments.limit)
    comparisons: list[Comparison] = []
    ordinary: dict[str, float] = {}
    for dtype in arguments.dtypes:
        engine, model = load_both(arguments.model, dtype, arguments.device)
        prompts = encode(engine, texts, arguments.max_new_tokens)
        found, ordinary[dtype] = compare(engine, model, prompts, dtype, arguments.max_new_tokens)
        comparisons += found
    publish(
        arguments.output,
        f"half_precision-{engine.checkpoint.name}",
        f"Greedy texts in 16 bits: {engine.checkpoint.name}",
        describe(comparisons, ordinary, arguments.max_new_tokens),
        {"comparisons": [asdict(comparison) for comparison in comparisons], "median_gap": ordinary},
    )


def compare(
    engine: Engine, model: PreTrainedModel, prompts: list[list[int]], dtype: str, max_new_tokens: int
) -> tuple[list[Comparison], float]:
    """All pairs, and the median gap over all positions of all texts."""
    comparisons = {pair: Comparison(dtype, *pair, len(prompts), []) for pair in PAIRS}
    gaps: list[float] = []
    for number, prompt in enumerate(progress(prompts, dtype)):
        texts = {GENERATE: generate(model, prompt, max_new_tokens=max_new_tokens, do_sample=False)}
        for name, how in METHODS.items():
            completion = engine.generate(
                prompt, decode=how, sampling=Sampling(temperature=0.0), stopping=Stopping(max_new_tokens)
            )
            texts[name] = completion.token_ids
        known = {name: gaps_of(model, prompt, texts[name]) for name in (GENERATE, "autoregressive")}
        gaps += known[GENERATE]
        for (method, against), comparison in comparisons.items():
            at = first_difference(texts[method], texts[against])
            if at is not None:
                gap = known[against][at] if at < len(texts[against]) else None
                comparison.partings.append(Parting(number, at, gap))
    return list(comparisons.values()), statistics.median(gaps)


@torch.inference_mode()
def gaps_of(model: PreTrainedModel, prompt: list[int], text: list[int]) -> list[float]:
    """Of each token of the text: the best logit less the second best."""
    inputs = torch.tensor([prompt + text[:-1]], device=model.device)
    best = model(inputs, logits_to_keep=len(text)).logits[0].float().topk(2).values
    return (best[:, 0] - best[:, 1]).tolist()


def first_difference(text: list[int], other: list[int]) -> int | None:
    """The place of the first token that differs, or where one of two texts goes on; None if they are the same."""
    if text == other:
        return None
    pairs = enumerate(zip(text, other))
    return next((at for at, (one, two) in pairs if one != two), min(len(text), len(other)))


def describe(comparisons: list[Comparison], ordinary: dict[str, float], max_new_tokens: int) -> str:
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
    usual = ", ".join(f"{gap:.2f} in {dtype}" for dtype, gap in ordinary.items())
    return (
        f"Up to {max_new_tokens} new tokens for each prompt. Gap: best logit less second best where two texts part; "
        f"over all tokens its median is {usual}. Token: how far into the text they part.\n\n"
        + markdown_table(columns, rows, num_text=3)
    )


if __name__ == "__main__":
    main()
