"""Measures transformers' own `generate` on a workload, with which the runtime is compared."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel
from transformers.generation.streamers import BaseStreamer

from launch.data import workloads
from launch.sweep.measure import Outcome, digest, fit, peak_bytes
from launch.sweep.records import RankFigures, TextRecord
from launch.sweep.settings import BenchSettings
from lp.model.checkpoint import pick_device, pick_dtype
from lp.model.gguf import unpacked_folder
from lp.model.memory import num_weight_bytes
from lp.sampling.settings import Sampling

PROMPT_LOOKUP_TOKENS = 10


def run(settings: BenchSettings, engine: str) -> Outcome:
    """Measures a baseline.

    engine: one of launch.sweep.settings.BASELINES. Raises ValueError for settings that cannot be used, OSError for a
    model that cannot be read.
    """
    problems = workloads.load(settings.workload)
    path = unpacked_folder(settings.model.path)
    model = _load(path, settings)
    tokenizer = AutoTokenizer.from_pretrained(path)
    context: int = model.config.get_text_config(decoder=True).max_position_embeddings
    context = min(context, settings.model.max_length or context)
    prompts = [fit(tokenizer.encode(p.prompt), context, settings.workload.max_new_tokens) for p in problems]
    generation = _generation(settings, model) | _special(engine, settings, tokenizer)
    rows = RowCounter(model) if engine in ("prompt_lookup", "assisted") else None  # a hook would break a compiled model
    outcome = Outcome(_figures(model))
    _generate(model, prompts[0], Watch(), settings, generation)
    begin = time.perf_counter()
    for problem, prompt in zip(problems, prompts, strict=True):
        watch = Watch()
        if rows:
            rows.reset()
        tokens, cache_bytes = _generate(model, prompt, watch, settings, generation)
        decode_s, steps = time.perf_counter() - watch.start, watch.lengths.total()
        figures = (len(prompt), len(tokens), steps, watch.ttft_s, decode_s)
        outcome.texts.append(TextRecord(problem.id, *figures, digest(tokens)))
        outcome.accepted_lengths += watch.lengths
        outcome.rows += rows.count - len(prompt) + 1 if rows else steps  # without the prompt's rows
        outcome.figures.cache_bytes = max(outcome.figures.cache_bytes, cache_bytes)
    outcome.seconds = time.perf_counter() - begin
    outcome.figures.peak_bytes = peak_bytes(model.device)
    return outcome


class Watch(BaseStreamer):
    """A streamer that times one text and counts its steps.

    lengths: number of steps by the number of tokens that they yielded. ttft_s: seconds to the first token.
    """

    def __init__(self) -> None:
        self.start = time.perf_counter()
        self.ttft_s = 0.0
        self.lengths: Counter[int] = Counter()
        self._has_prompt = False

    def put(self, value: Tensor) -> None:
        """value: the prompt, then the tokens of each step."""
        if not self._has_prompt:
            self._has_prompt = True
            return
        if not self.lengths:
            self.ttft_s = time.perf_counter() - self.start
        self.lengths[value.numel()] += 1

    def end(self) -> None:
        pass


class RowCounter:
    """Counts the rows of a model's forward passes."""

    def __init__(self, model: nn.Module):
        self.reset()
        model.register_forward_pre_hook(self._count, with_kwargs=True)

    def reset(self) -> None:
        self.count = 0

    def _count(self, module: nn.Module, arguments: Any, keywords: dict[str, Any]) -> None:
        self.count += keywords["input_ids"].shape[1]


def _load(path: str, settings: BenchSettings) -> PreTrainedModel:
    device = pick_device(settings.model.device)
    dtype = pick_dtype(settings.model.dtype, device, AutoConfig.from_pretrained(path))
    model = AutoModelForCausalLM.from_pretrained(path, dtype=dtype, use_safetensors=True)
    if settings.ignore_eos:
        model.generation_config.eos_token_id = None
    nn.Module.to(model, device)
    return model.eval()


def _generation(settings: BenchSettings, model: PreTrainedModel) -> dict[str, Any]:
    """Returns the keywords that make `generate` do what the settings make the runtime do.

    Raises ValueError for a setting that `generate` does not have.
    """
    sampling: Sampling = settings.sampling.with_defaults(model.generation_config)
    for name in ("presence_penalty", "frequency_penalty"):
        if getattr(sampling, name):
            raise ValueError(f"transformers' generate has no sampling.{name}: leave it out, or use baselines=[]")
    keywords: dict[str, Any] = {
        "max_new_tokens": settings.workload.max_new_tokens,
        "do_sample": bool(sampling.temperature),
        "repetition_penalty": sampling.repetition_penalty,
        "no_repeat_ngram_size": sampling.no_repeat_ngram,
        "sequence_bias": {(token,): float(bias) for token, bias in sampling.logit_bias.items()} or None,
    }
    if settings.ignore_eos:
        keywords["pad_token_id"] = 0
    else:
        keywords["min_new_tokens"] = sampling.min_new_tokens or None
    if sampling.temperature:
        keywords |= {"temperature": sampling.temperature, "top_k": sampling.top_k or 0}
        keywords |= {"top_p": sampling.top_p, "min_p": sampling.min_p or None}
    return keywords


def _special(engine: str, settings: BenchSettings, tokenizer: Any) -> dict[str, Any]:
    match engine:
        case "generate_static":
            return {"cache_implementation": "static"}
        case "prompt_lookup":
            return {"prompt_lookup_num_tokens": PROMPT_LOOKUP_TOKENS}
        case "assisted":
            assert settings.assistant is not None
            if AutoTokenizer.from_pretrained(settings.assistant).get_vocab() != tokenizer.get_vocab():
                raise ValueError(
                    f"assistant={settings.assistant} has another tokenizer than the model; choose one with the same"
                )
            return {"assistant_model": _load(settings.assistant, settings)}
        case _:
            return {}


@torch.inference_mode()
def _generate(
    model: PreTrainedModel, prompt: list[int], watch: Watch, settings: BenchSettings, keywords: dict[str, Any]
) -> tuple[list[int], int]:
    """Returns the new tokens, and the bytes of the KV cache at the end."""
    assert settings.sampling.seed is not None
    torch.manual_seed(settings.sampling.seed)
    inputs = torch.tensor([prompt], device=model.device)
    output = cast(Any, model).generate(
        inputs, attention_mask=torch.ones_like(inputs), streamer=watch, return_dict_in_generate=True, **keywords
    )
    layers = output.past_key_values.layers
    return output.sequences[0, len(prompt) :].tolist(), sum(layer.keys.nbytes + layer.values.nbytes for layer in layers)


def _figures(model: PreTrainedModel) -> RankFigures:
    """Returns the figures of a single rank, which sends nothing."""
    return RankFigures(
        rank=0,
        device=str(model.device),
        weight_bytes=num_weight_bytes(model),
        cache_bytes=0,
        peak_bytes=0,
        num_collectives=0,
        bytes_sent=0,
        communication_s=0.0,
    )
