"""transformers' `generate`, plain and with its own ways to draft, as compared engines."""

from __future__ import annotations

import time
from typing import Any

from torch import Tensor
from transformers import PreTrainedModel

from benchmarks.peer_engines.base import PeerPrompt, PeerText, Unavailable
from benchmarks.shared.decoded_texts import GENERATE, generate_tokens
from benchmarks.shared.methods import GENERATE_LOOKUP, LOOKUP_TOKENS
from launch.sweep.baseline import Watch


class FirstTokensWatch(Watch):
    """Also counts the tokens that came with the reading of the prompt, which may include accepted drafts."""

    num_first = 0

    def put(self, value: Tensor) -> None:
        super().put(value)
        if not self.num_first and self.lengths:
            self.num_first = value.numel()


class TransformersPeer:
    """One way to call `generate`. keywords: its arguments beyond those of greedy decoding."""

    def __init__(self, name: str, model: PreTrainedModel, keywords: dict[str, Any]):
        self.name = name
        self.model = model
        self.keywords = keywords

    def decode(self, prompt: PeerPrompt, max_new_tokens: int) -> PeerText:
        watch = FirstTokensWatch()
        greedy = {"max_new_tokens": max_new_tokens, "do_sample": False}
        try:
            tokens = generate_tokens(self.model, prompt.tokens, streamer=watch, **greedy, **self.keywords)
        except (ValueError, RuntimeError, TypeError, AttributeError, IndexError) as error:
            raise Unavailable(
                f"generate({_arguments(self.keywords)}) failed: {' '.join(str(error).split())}"
            ) from error
        whole_s = time.perf_counter() - watch.start
        return PeerText(len(tokens), watch.num_first, watch.ttft_s, whole_s - watch.ttft_s, tokens)

    def close(self) -> None:
        """The model goes when the last of its ways does."""


def transformers_peers(model: PreTrainedModel) -> list[TransformersPeer]:
    """`generate`, its prompt lookup, and its drafts from the first third of the model's own layers."""
    num_layers: int = model.config.get_text_config(decoder=True).num_hidden_layers
    exit_layer = max(1, num_layers // 3)
    return [
        TransformersPeer(GENERATE, model, {}),
        TransformersPeer(GENERATE_LOOKUP, model, {"prompt_lookup_num_tokens": LOOKUP_TOKENS}),
        TransformersPeer(
            f"transformers early exit (layer {exit_layer} of {num_layers})", model, {"assistant_early_exit": exit_layer}
        ),
    ]


def _arguments(keywords: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in keywords.items())
