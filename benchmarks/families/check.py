"""Tries one family: whether it loads, decodes the tokens of `generate`, and can be split and quantised."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.distributed import TCPStore
from transformers import AutoConfig

from benchmarks.families.checkpoints import VOCAB_SIZE, WINDOW, published_kind, save_family
from benchmarks.families.processes import call_in_processes
from benchmarks.shared.decoded_texts import generate_tokens
from lp import Auto, Autoregressive, Engine, Lookahead, PromptLookup, Sampling, Stopping
from lp.engine.builder import EngineSettings
from lp.engine.input import RequestBuilder
from lp.model.checkpoint import ModelSettings, load
from lp.model.compilation import CompileMode
from lp.model.errors import one_line
from lp.model.quantization.quantize import Weights
from lp.request import DecodingMethod
from lp.runner.single_device import SingleDevice
from lp.runner.step_times.measure import StepTimesSource
from parallel.build import MeshTopology
from parallel.errors import RankLost
from parallel.mesh import ExchangeKind, Mesh, ParallelSettings

METHODS: tuple[DecodingMethod, ...] = (Autoregressive(), PromptLookup(5, 7), Lookahead(7, 5, 7), Auto(rows=32))
NEW_TOKENS = 24
# Of the prompts: a short one, and one that is longer than the sliding windows.
LENGTHS = (7, 2 * WINDOW + 5)
LIMIT_S = 120.0
YES, NO = "yes", "no"


@dataclass
class FamilyResult:
    """What was found for a family, in the words of the table.

    decoding: trees, plain, refused, wrong or crash; none where transformers itself cannot make or run the tiny model.
    forward: native or eager. tp, pp, int8: yes or no. reason: why it is not all that it might be.
    """

    name: str
    decoding: str
    forward: str = ""
    tp: str = ""
    pp: str = ""
    int8: str = ""
    reason: str = ""


def check_family(name: str, is_quick: bool = False) -> FamilyResult:
    """Makes the family's tiny model and tries all that a row of the table says.

    is_quick: whether nothing is compiled, split or quantised.
    """
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        try:
            path = str(save_family(name, Path(folder)))
            kind = published_kind(AutoConfig.from_pretrained(path))
            model = kind.from_pretrained(path, dtype=torch.float32, attn_implementation="eager").eval()
            expected = [_generate(model, prompt) for prompt in make_prompts()]
        except Exception as error:
            return FamilyResult(name, "none", reason=f"transformers: {_described(error)}")
        return _try_folder(name, path, expected, is_quick)


def make_prompts() -> list[list[int]]:
    """Random tokens in which short pieces recur, so that there is something to look up."""
    rng = random.Random(1)
    pieces = [[rng.randrange(2, VOCAB_SIZE) for _ in range(6)] for _ in range(4)]
    return [[token for _ in range(length) for token in rng.choice(pieces)][:length] for length in LENGTHS]


def _generate(model: Any, prompt: list[int]) -> list[int]:
    model.generation_config.eos_token_id = None
    return generate_tokens(model, prompt, max_new_tokens=NEW_TOKENS, do_sample=False)


def _try_folder(name: str, path: str, expected: list[list[int]], is_quick: bool) -> FamilyResult:
    try:
        engine = _engine(ModelSettings(path, device="cpu"))
        if fault := _find_fault(engine, METHODS, expected):
            return FamilyResult(name, "wrong", reason=fault)
    except ValueError as error:
        return FamilyResult(name, "refused", reason=_described(error))
    except Exception as error:
        return FamilyResult(name, "crash", reason=_described(error))
    plain = engine.checkpoint.plain
    result = FamilyResult(name, "plain" if plain else "trees", reason=plain)
    if is_quick:
        return result
    result.forward, result.tp, result.pp = "eager", NO, NO
    result.int8, *reasons = _try_int8(path)
    if not plain:
        result.forward, why_not_native = _try_native(path, expected)
        result.tp, why_no_tp = _try_ranks(path, "tp", expected)
        result.pp, why_no_pp = _try_ranks(path, "pp", expected)
        reasons += [why_not_native, why_no_tp, why_no_pp]
    result.reason = "; ".join(filter(None, [plain, *reasons]))
    return result


def _try_native(path: str, expected: list[list[int]]) -> tuple[str, str]:
    """Which forward runs where compiling is wanted, and why it is not the native one, or what is wrong with that."""
    try:
        fault = _find_fault(_engine(ModelSettings(path, device="cpu", compile=CompileMode.on)), METHODS, expected)
    except ValueError as error:
        reason = _described(error).removeprefix("model.compile=on: ").removesuffix("; use model.compile=off")
        return "eager", f"native: {reason}"
    return ("wrong", f"native: {fault}") if fault else ("native", "")


def _engine(settings: ModelSettings) -> Engine:
    checkpoint = load(settings)
    return Engine(checkpoint, SingleDevice(checkpoint.model), RequestBuilder(checkpoint))


def _decode(engine: Engine, method: DecodingMethod, prompt: list[int]) -> list[int]:
    stopping, sampling = Stopping(NEW_TOKENS, ignore_eos=True), Sampling(temperature=0.0, seed=0)
    return engine.generate(prompt, decode=method, sampling=sampling, stopping=stopping).token_ids


def _find_fault(engine: Engine, methods: Sequence[DecodingMethod], expected: list[list[int]]) -> str:
    """Which method's text is the first that is another than transformers'; empty if all are the same."""
    for method in methods:
        for prompt, text in zip(make_prompts(), expected, strict=True):
            found = _decode(engine, method, prompt)
            if found != text:
                at = next(at for at in range(NEW_TOKENS) if found[at : at + 1] != text[at : at + 1])
                return f"{method.method}: other tokens than generate from token {at} after {len(prompt)}"
    return ""


def _try_ranks(path: str, axis: str, expected: list[list[int]]) -> tuple[str, str]:
    """Whether two ranks that split the model along an axis give the same tokens, and why not."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    calls: list[Callable[[], str]] = [
        lambda rank=rank: _serve_as_rank(path, axis, rank, store.port, expected) for rank in range(2)
    ]
    faults = [found for found in call_in_processes(calls, LIMIT_S) if found]
    faults.sort(key=lambda fault: fault.startswith(RankLost.__name__))  # what the other rank says comes first
    return (NO, f"{axis}: {faults[0]}") if faults else (YES, "")


def _serve_as_rank(path: str, axis: str, rank: int, port: int, expected: list[list[int]]) -> str:
    """What is wrong with the texts of this rank; empty if nothing is."""
    store = TCPStore("127.0.0.1", port, is_master=False)
    settings = ParallelSettings(exchange=ExchangeKind.gloo, timeout_s=LIMIT_S / 2)
    model = ModelSettings(path, device="cpu")
    try:
        with closing(MeshTopology(settings, Mesh({axis: 2}, rank, 2), store)) as place:
            engine = Engine.assemble(EngineSettings(model, step_times=StepTimesSource.off), place)
            return _find_fault(engine, (METHODS[0], METHODS[2]), expected)
    except Exception as error:
        return _described(error)


def _try_int8(path: str) -> tuple[str, str]:
    """Whether the model decodes with weights of 8 bits, and gives one text by two methods; and why not."""
    try:
        engine = _engine(ModelSettings(path, device="cpu", weights=Weights.int8))
        texts = [[_decode(engine, method, prompt) for prompt in make_prompts()] for method in (METHODS[0], METHODS[2])]
    except Exception as error:
        return NO, f"int8: {_described(error)}"
    return (YES, "") if texts[0] == texts[1] else (NO, "int8: methods give different texts")


def _described(error: Exception) -> str:
    """An error on one line; with its name, where it is not meant for a user."""
    return one_line(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {one_line(error)}"
