"""What a caller of transformers' `generate` asks for, as our settings. What cannot be honoured is refused by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig, PreTrainedModel

from lp.methods.auto.method import Auto
from lp.methods.lookahead import Lookahead
from lp.request import DecodingMethod
from lp.sampling.settings import LARGEST_SEED, Sampling

# What these processors of transformers do, `Sampling` says.
KNOWN_PROCESSORS = frozenset(
    f"{name}LogitsProcessor" for name in ("RepetitionPenalty", "NoRepeatNGram", "MinLength", "MinNewTokensLength")
) | frozenset(f"{name}LogitsWarper" for name in ("Temperature", "TopK", "TopP", "MinP"))
# Settings of a GenerationConfig that no processor stands for, and what they are without effect.
REFUSED: dict[str, tuple[Any, ...]] = {
    "num_beams": (None, 1),
    "num_beam_groups": (None, 1),
    "num_return_sequences": (None, 1),
    "penalty_alpha": (None, 0.0),
    "constraints": (None,),
    "force_words_ids": (None,),
    "dola_layers": (None,),
    "prompt_lookup_num_tokens": (None,),
    "output_attentions": (None, False),
    "output_hidden_states": (None, False),
    "output_scores": (None, False),
    "output_logits": (None, False),
}
# Arguments of a forward that `generate` adds, or that mean nothing here.
PASSED = frozenset(
    ("attention_mask", "position_ids", "past_key_values", "use_cache", "logits_to_keep", "cache_position")
)


class CannotHonour(ValueError):
    """The caller asks for something that lp.generate does not do."""

    def __init__(self, what: str):
        super().__init__(f"lp.generate cannot honour {what}; leave it out, or call generate without custom_generate")


def check(
    model: PreTrainedModel,
    input_ids: Tensor,
    config: GenerationConfig,
    processors: Sequence[object],
    arguments: Mapping[str, Any],
) -> None:
    """Raises CannotHonour for the first thing that is asked and not done. arguments: of the model's forward."""
    if getattr(model.config, "is_encoder_decoder", False):
        raise CannotHonour("models with an encoder")
    for name, idle in REFUSED.items():
        if (value := getattr(config, name, None)) not in idle:
            raise CannotHonour(f"{name}={value}")
    if len(input_ids) != 1:
        raise CannotHonour(f"a batch of {len(input_ids)} sequences (a batch of one is what it takes)")
    for processor in processors:
        if type(processor).__name__ not in KNOWN_PROCESSORS:
            raise CannotHonour(f"the logits processor {type(processor).__name__}")
    mask = arguments.get("attention_mask")
    if mask is not None and not bool((mask == 1).all()):
        raise CannotHonour("padding in attention_mask")
    cache = arguments.get("past_key_values")
    if cache is not None and cache.get_seq_length():
        raise CannotHonour("past_key_values that hold tokens")
    for name, value in arguments.items():
        if name not in PASSED and value is not None:
            raise CannotHonour(f"the argument {name}")


def sampling_of(config: GenerationConfig, prompt_length: int) -> Sampling:
    """The sampling settings of a call. The seed is drawn from torch, so torch.manual_seed repeats a text."""
    seed = int(torch.randint(LARGEST_SEED, (1,))) if config.do_sample else 0
    least = max(config.min_new_tokens or 0, (config.min_length or 0) - prompt_length)
    return Sampling(seed=seed, min_new_tokens=least).with_defaults(config)


def method_of(
    window: int | None, ngram: int | None, guesses: int | None, decode: DecodingMethod | None
) -> DecodingMethod:
    """The decoding method: that of `decode`, or lookahead with W, N and G, or auto. Raises ValueError."""
    given: dict[str, int | None] = {"window": window, "ngram": ngram, "guesses": guesses}
    sizes: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if decode is not None and sizes:
        raise ValueError("W, N and G are sizes of lookahead decoding; give them or decode, not both")
    if decode is not None and decode.needs_engine:
        raise CannotHonour(
            f"decode={decode.method}, which is for lp.Engine: a call of generate has one text and loads no second model"
        )
    return decode or (Lookahead(**sizes) if sizes else Auto())
