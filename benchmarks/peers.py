"""Compares this project with transformers and llama.cpp on the same weights, prompts and machine.

    python -m benchmarks.peers --prompts FOLDER --limit 14 --max-new-tokens 64

All engines get the same token ids, decode greedily, end at the model's end of text or at --max-new-tokens, and take
turns on every prompt. transformers: `generate`, its prompt lookup, its drafts by early exit. llama.cpp: without drafts,
lookup, lookahead, and its server with each kind of n-gram drafts; built once in the user's cache from the sources that
the package llama-cpp-python carries. Ours: autoregressive, auto, and lookahead at (15, 5, 15), which is the method of
lookahead decoding's reference implementation at its authors' setting. An engine that cannot be had is left out, and
the output says why. --prompt-tokens times prompts of those lengths too, each by the first engine of each project,
without drafts.

FOLDER holds humaneval.jsonl, gsm8k.jsonl and spec_bench.jsonl, or some of them; without --prompts, the project's own
workload is asked. Prints tables and writes them, with all figures and a plot, to --output.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from benchmarks.peer_engines import llama_build, llama_programs, llama_server, own_engine
from benchmarks.peer_engines.base import Peer, PeerPrompt, Unavailable
from benchmarks.peer_engines.comparison import WARM_UP, Comparison, compare
from benchmarks.peer_engines.comparison_report import LLAMA_CPP, OWN, ExpectedTexts, describe, plot, to_json
from benchmarks.peer_engines.llama_weights import TYPES, make_weights
from benchmarks.peer_engines.transformers_engine import transformers_peers
from benchmarks.shared.categories import CategoryPrompt, read_categories
from benchmarks.shared.decoded_texts import GENERATE, generate_tokens
from benchmarks.shared.options import add_output, add_stored, add_threads, ascending_numbers, make_parser, parse
from benchmarks.shared.report import progress, publish
from benchmarks.steps.machine_rates import RateGauge
from launch.config import resources
from lp import Engine
from lp.model.checkpoint import DTYPES
from lp.model.checkpoint_info import CheckpointInfo, read_checkpoint_info
from lp.model.compilation import CompileMode
from lp.model.gguf import unpacked_folder
from lp.platform.processor import processor_name

TRANSFORMERS = "transformers"
FAMILIES = (TRANSFORMERS, LLAMA_CPP, OWN)
BANDWIDTH_READINGS = 5
# What reads the prompts of --prompt-tokens, and the new tokens that follow, the fewest that every engine can do.
PROMPT_READERS = (GENERATE, llama_programs.BENCH, own_engine.AUTOREGRESSIVE)
READ_PROMPT_TOKENS = 2


def main() -> None:
    arguments = parse_arguments()
    asked = read_categories(arguments.prompts, arguments.limit)
    try:
        path = resources.resolve(arguments.model)
        checkpoint = read_checkpoint_info(path)
        prompts = encode(checkpoint, asked, arguments.max_new_tokens)
        lengths = prompts_of_lengths(prompts, arguments.prompt_tokens, checkpoint.max_length)
        expected = expect(path, checkpoint, prompts, arguments.max_new_tokens)
        comparisons = [compare_at(dtype, path, checkpoint, prompts, lengths, arguments) for dtype in arguments.dtypes]
    except ValueError as error:
        raise SystemExit(str(error)) from None
    bandwidth = read_bandwidth()
    told = (
        f"{len(prompts)} prompts, up to {arguments.max_new_tokens} new tokens each, greedy. Threads: "
        f"{arguments.threads}. Weights: {'as the file has them' if arguments.stored else 'copies in each format'}. "
        f"Rounds, of which each figure is the median: {arguments.rounds}. Processor: "
        f"{processor_name()}, whose memory was read at {bandwidth / 1e9:.1f} GB/s. Tokens per second of decoding alone "
        "(after the first tokens) and with the reading of the prompt. Same text: number of texts that equal those of "
        "`generate` in float32."
    )
    publish(
        arguments.output,
        f"peers-{checkpoint.name}{'-stored' * arguments.stored}",
        f"Against what people would pick instead: {checkpoint.name}",
        "\n\n".join([told, *(describe(one, expected, prompts, lengths) for one in comparisons)]),
        {"bytes_per_s": bandwidth, "comparisons": [to_json(one, expected) for one in comparisons]},
        plot(comparisons),
    )


def parse_arguments() -> argparse.Namespace:
    parser = make_parser(__doc__)
    parser.add_argument(
        "--model", default=resources.SMOLLM2, help="GGUF file or checkpoint folder (default %(default)s)"
    )
    parser.add_argument("--prompts", type=Path, metavar="FOLDER", help="folder with the prompts (default: our own)")
    parser.add_argument("--limit", type=int, default=14, help="prompts over all categories (default %(default)s)")
    parser.add_argument("--max-new-tokens", type=int, default=64, help="for each prompt (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds over all prompts (default %(default)s)")
    parser.add_argument(
        "--dtypes", nargs="+", default=list(TYPES), choices=DTYPES, help="number formats (default float32 bfloat16)"
    )
    parser.add_argument(
        "--prompt-tokens",
        type=ascending_numbers,
        default=[],
        metavar="N,N",
        help="prompts that are timed (default none)",
    )
    add_stored(parser)
    parser.add_argument("--engines", nargs="+", default=FAMILIES, choices=FAMILIES, help="default all")
    parser.add_argument(
        "--compile", default="auto", choices=list(CompileMode), help="our compiled forward (default %(default)s)"
    )
    parser.add_argument(
        "--build-jobs", type=int, default=os.cpu_count() or 1, help="compilers of llama.cpp at a time (default: cores)"
    )
    add_threads(parser)
    add_output(parser)
    parser.set_defaults(threads=2)
    arguments = parse(parser)
    if min(arguments.rounds, arguments.build_jobs) < 1:
        parser.error("--rounds and --build-jobs must be at least 1")
    if arguments.max_new_tokens < 2:
        parser.error("--max-new-tokens must be at least 2: the first comes with the reading of the prompt")
    if arguments.stored and not arguments.model.endswith(".gguf") and not arguments.model.startswith(resources.PREFIX):
        parser.error(f"--stored is for GGUF files, and --model is {arguments.model}")
    return arguments


def encode(checkpoint: CheckpointInfo, asked: Sequence[CategoryPrompt], max_new_tokens: int) -> list[PeerPrompt]:
    """The prompts that fit the context. Raises ValueError if none does."""
    tokenizer = checkpoint.tokenizer
    texts = [(prompt.category, prompt.for_model(tokenizer)) for prompt in asked]
    prompts = [PeerPrompt(category, text, tokenizer.encode(text)) for category, text in texts]
    fitting = [one for one in prompts if len(one.tokens) + max_new_tokens <= checkpoint.max_length]
    if not fitting:
        raise ValueError(
            f"no prompt fits a context of {checkpoint.max_length} tokens with --max-new-tokens {max_new_tokens}"
        )
    return fitting


def prompts_of_lengths(prompts: Sequence[PeerPrompt], lengths: Sequence[int], max_length: int) -> list[PeerPrompt]:
    """Prompts of exactly so many tokens, made of the texts of all. Raises ValueError for one that does not fit."""
    for length in lengths:
        if length + WARM_UP > max_length:
            raise ValueError(f"--prompt-tokens {length} does not fit a context of {max_length} tokens")
    tokens = [token for prompt in prompts for token in prompt.tokens]
    repeated = tokens * (1 + max(lengths, default=0) // len(tokens))
    return [PeerPrompt(f"{length} tokens", "", repeated[:length]) for length in lengths]


def load_transformers(path: str, dtype: str) -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(unpacked_folder(path), dtype=DTYPES[dtype], use_safetensors=True).eval()


def expect(path: str, checkpoint: CheckpointInfo, prompts: Sequence[PeerPrompt], max_new_tokens: int) -> ExpectedTexts:
    """The texts that every engine should give."""
    model = load_transformers(path, "float32")
    greedy = {"max_new_tokens": max_new_tokens, "do_sample": False}
    tokens = [generate_tokens(model, one.tokens, **greedy) for one in progress(prompts, "expected texts")]
    decode = checkpoint.tokenizer.decode
    return ExpectedTexts(
        tokens, [str(decode(one, clean_up_tokenization_spaces=False)) for one in tokens], checkpoint.eos
    )


def compare_at(
    dtype: str,
    path: str,
    checkpoint: CheckpointInfo,
    prompts: Sequence[PeerPrompt],
    lengths: Sequence[PeerPrompt],
    arguments: argparse.Namespace,
) -> Comparison:
    """All engines at one number format. lengths: prompts whose reading alone is timed."""
    with ExitStack() as held:
        peers: list[Peer] = []
        skipped: dict[str, str] = {}
        if TRANSFORMERS in arguments.engines:
            peers += transformers_peers(load_transformers(path, dtype))
        if LLAMA_CPP in arguments.engines:
            try:
                context = max(len(one.tokens) for one in prompts) + 2 * arguments.max_new_tokens
                peers += llama_peers(Path(path), dtype, context, arguments)
            except Unavailable as error:
                skipped[LLAMA_CPP] = str(error)
        if OWN in arguments.engines:
            own = path if arguments.stored else unpacked_folder(path)
            engine = Engine.from_pretrained(own, dtype, "cpu", compile=arguments.compile)
            peers += [own_engine.OwnPeer(name, engine, method) for name, method in own_engine.METHODS.items()]
        for peer in peers:
            held.callback(peer.close)
        comparison = compare(dtype, peers, prompts, arguments.max_new_tokens, arguments.rounds)
        if lengths:
            readers = [peer for peer in peers if peer.name in PROMPT_READERS]
            comparison.read = compare(dtype, readers, lengths, READ_PROMPT_TOKENS, arguments.rounds).records
    comparison.skipped |= skipped
    return comparison


def llama_peers(model: Path, dtype: str, context: int, arguments: argparse.Namespace) -> Iterator[Peer]:
    """llama.cpp's programs on the same weights. Raises Unavailable."""
    programs = llama_build.build_programs(arguments.build_jobs)
    weights = model if arguments.stored else make_weights(programs, model, dtype)
    server = programs / "llama-server"
    yield llama_programs.BenchProgram(programs / "llama-bench", weights, arguments.threads)
    for name in ("llama-lookup", "llama-lookahead"):
        yield llama_programs.TextProgram(programs / name, weights, dtype, arguments.threads)
    for kind in [None, *llama_server.kinds_of_drafts(server)]:
        yield llama_server.ServerPeer(server, weights, dtype, arguments.threads, context, kind)


def read_bandwidth() -> float:
    """Bytes per second that this machine reads from memory, the median of a few readings."""
    gauge = RateGauge(torch.device("cpu"), torch.float32)
    return median(gauge.read_bytes_per_s() for _ in range(BANDWIDTH_READINGS))


if __name__ == "__main__":
    main()
