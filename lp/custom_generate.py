"""Decoding for transformers' `generate`: model.generate(..., custom_generate=lp.generate).

The model stays the caller's: its weights are neither copied nor changed, and it gets its attention function back. What
was learnt about drafts is kept for as long as the model lives.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from transformers import GenerationConfig, PreTrainedModel
from transformers.generation import GenerateDecoderOnlyOutput

from lp.drafting.history import DraftHistory
from lp.methods.auto.method import Auto
from lp.methods.lookahead import Lookahead
from lp.model.causal import CausalModel
from lp.model.exactness import check_tree
from lp.model.kernels import AttentionKind
from lp.model.own_attention import restore_attention
from lp.model.recurrent.kinds import restore_layers
from lp.request import DecodeLimits, DecodingContext, DecodingMethod, Request
from lp.request import Sequence as TokenSequence
from lp.runner.runner import StepInput
from lp.runner.single_device import SingleDevice
from lp.sampling.settings import LARGEST_SEED, Sampling
from lp.text.stopping import Stopping

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
# What was learnt with each model. Those that are here have passed the check of exactness.
_learnt: WeakKeyDictionary[PreTrainedModel, DraftHistory] = WeakKeyDictionary()


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


@torch.inference_mode()
def generate(
    model: PreTrainedModel,
    input_ids: Tensor,
    logits_processor: Sequence[object] = (),
    stopping_criteria: Any = (),
    generation_config: GenerationConfig | None = None,
    W: int | None = None,
    N: int | None = None,
    G: int | None = None,
    decode: DecodingMethod | None = None,
    streamer: Any = None,
    **arguments: Any,
) -> Tensor | GenerateDecoderOnlyOutput:
    """Decodes as `generate` does, in fewer steps. transformers calls this with all but W, N, G and decode.

    Greedy text is that of `generate`. Sampled text has the same distribution, with noise of its own, which
    torch.manual_seed repeats. W, N, G: window, n-grams and guesses of lookahead decoding; without them, and without
    `decode`, the method is auto. decode: any other settings of lp.methods that need no engine. The others: as
    for transformers' own decoding functions.
    Returns the sequences [1, T], or an output that holds them if return_dict_in_generate is set. Raises CannotHonour, a
    ValueError, for what is not done here, and UnsupportedArchitecture for a model that trees cannot be computed with.
    """
    assert generation_config is not None
    check(model, input_ids, generation_config, logits_processor, arguments)
    settings = method_of(W, N, G, decode)
    settings.check(DecodeLimits())
    prompt = input_ids[0].tolist()
    sampling = sampling_of(generation_config, len(prompt))
    most = max(0, generation_config.max_length - len(prompt))
    with _with_trees(model, generation_config) as causal:
        sampling.check(causal.vocab_size)
        tokens = _Tokens(input_ids, most, stopping_criteria, _streamer_of_caller() if streamer is None else streamer)
        _decode(causal, prompt, settings, sampling, _learnt[model], tokens)
    found: Any = tokens.found
    return GenerateDecoderOnlyOutput(sequences=found) if generation_config.return_dict_in_generate else found


@contextmanager
def _with_trees(model: PreTrainedModel, generation_config: GenerationConfig) -> Iterator[CausalModel]:
    """The model with tree attention and the end tokens of a call, and a DraftHistory for it."""
    before: Any = model.config._attn_implementation
    was_training = model.training
    text = model.config.get_text_config(decoder=True)
    limit = getattr(text, "max_position_embeddings", None) or getattr(text, "n_positions", None) or 2048
    eos = generation_config.eos_token_id
    ends = [] if eos is None else [int(one) for one in (eos if isinstance(eos, list) else [eos])]
    # Caches of this model alone, with memory of their own, which one kind of attention on a GPU reads.
    kind = AttentionKind.auto if model.device.type == "cpu" else AttentionKind.sdpa
    try:
        causal = CausalModel(model, limit, ends, kind)
        if model not in _learnt:
            check_tree(causal, [])
            _learnt[model] = DraftHistory(vocab_size=causal.vocab_size)
        yield causal
    finally:
        restore_layers(model)
        restore_attention(model)
        model.set_attn_implementation(before)
        model.train(was_training)


class _Tokens:
    """The tokens of a call. Each is shown to the streamer and to the criteria, as if it had come alone.

    found: [1, T] so far. is_over: whether a criterion has stopped the text.
    """

    def __init__(self, input_ids: Tensor, most: int, criteria: Any, streamer: Any):
        self._all = torch.cat([input_ids, input_ids.new_zeros(1, most)], dim=1)
        self._length = input_ids.shape[1]
        self._criteria, self._streamer = criteria, streamer
        self.most, self.is_over = most, most == 0

    @property
    def found(self) -> Tensor:
        return self._all[:, : self._length]

    def take(self, tokens: Sequence[int]) -> int:
        """Adds tokens until a criterion stops the text. Returns how many were taken."""
        for number, token in enumerate(tokens, 1):
            self._all[0, self._length] = token
            self._length += 1
            self.most -= 1
            if self._streamer is not None:
                self._streamer.put(self._all[0, self._length - 1 : self._length].cpu())
            stops = self._criteria(self.found, None) if self._criteria else False
            self.is_over = self.most == 0 or bool(torch.as_tensor(stops).all())
            if self.is_over:
                return number
        return len(tokens)

    def end(self) -> None:
        if self._streamer is not None:
            self._streamer.end()


def _decode(
    causal: CausalModel,
    prompt: list[int],
    settings: DecodingMethod,
    sampling: Sampling,
    history: DraftHistory,
    tokens: _Tokens,
) -> None:
    runner, sequence = SingleDevice(causal), TokenSequence("generate", list(prompt), len(prompt), sampling)
    request = Request("generate", prompt, settings, sampling, Stopping(tokens.most))
    decoder = settings.make_decoder(request, DecodingContext(history))
    runner.open(sequence)
    while not tokens.is_over:
        tree = decoder.plan(sequence.tokens, causal.max_length - len(sequence.tokens), tokens.most)
        runner.start([StepInput.of(sequence, tree, decoder.num_candidates)])
        (answers,) = runner.finish()
        accepted, _ = decoder.commit(sequence.tokens, answers)
        if min(accepted.tokens) < 0:
            raise FloatingPointError("the model answered with something that is not a number (NaN)")
        sequence.tokens += accepted.tokens[: tokens.take(accepted.tokens)]
    tokens.end()
    runner.close(sequence)


def _streamer_of_caller() -> Any:
    """The streamer of the `generate` that calls this; transformers 5.23 does not pass it on to callables."""
    frame = inspect.currentframe()
    while frame is not None and not (
        frame.f_code.co_name == "generate" and frame.f_globals.get("__name__") == "transformers.generation.utils"
    ):
        frame = frame.f_back
    return frame and frame.f_locals.get("streamer")
