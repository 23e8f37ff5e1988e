"""Decoding for transformers' `generate`: model.generate(..., custom_generate=lp.generate).

The model stays the caller's: its weights are neither copied nor changed, and it gets its attention function back. What
was learnt about drafts is kept for as long as the model lives.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from transformers import GenerationConfig, PreTrainedModel
from transformers.generation import GenerateDecoderOnlyOutput

from lp.custom_generate.asked import check, method_of, sampling_of
from lp.drafting.history import DraftHistory
from lp.model.causal import CausalModel
from lp.model.exactness import check_tree
from lp.model.kernels import AttentionKind
from lp.request import DecodeLimits, DecodingContext, DecodingMethod, Request
from lp.request import Sequence as TokenSequence
from lp.runner import StepInput
from lp.sampling.settings import Sampling
from lp.single_device import SingleDevice
from lp.text.stopping import Stopping

# What was learnt with each model. Those that are here have passed the check of exactness.
_learnt: WeakKeyDictionary[PreTrainedModel, DraftHistory] = WeakKeyDictionary()


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
    with _with_trees(model) as causal:
        sampling.check(causal.vocab_size)
        tokens = _Tokens(input_ids, most, stopping_criteria, _streamer_of_caller() if streamer is None else streamer)
        _decode(causal, prompt, settings, sampling, _learnt[model], tokens)
    found: Any = tokens.found
    return GenerateDecoderOnlyOutput(sequences=found) if generation_config.return_dict_in_generate else found


@contextmanager
def _with_trees(model: PreTrainedModel) -> Iterator[CausalModel]:
    """The model with tree attention, and a DraftHistory for it."""
    before: Any = model.config._attn_implementation
    was_training = model.training
    text = model.config.get_text_config(decoder=True)
    limit = getattr(text, "max_position_embeddings", None) or getattr(text, "n_positions", None) or 2048
    eos = model.generation_config.eos_token_id if model.generation_config else None
    ends = [] if eos is None else [int(one) for one in (eos if isinstance(eos, list) else [eos])]
    # Caches of this model alone, with memory of their own, which one kind of attention on a GPU reads.
    kind = AttentionKind.auto if model.device.type == "cpu" else AttentionKind.sdpa
    try:
        causal = CausalModel(model, limit, ends, kind)
        if model not in _learnt:
            check_tree(causal, [])
            _learnt[model] = DraftHistory()
        yield causal
    finally:
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
        runner.start([StepInput.of(sequence, tree, decoder.num_candidates, decoder.is_shared)])
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
