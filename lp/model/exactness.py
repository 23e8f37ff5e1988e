"""Is tree attention exact for this architecture? Asked of every checkpoint when it is loaded.

A model passes if each layer reads the token tree's attention function, and if a small tree's logits are those of its
paths run one by one through transformers' own attention.
"""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import PreTrainedModel

from lp.model import attention
from lp.model.causal import CausalModel
from lp.tree import TokenTree, TreeBuilder, chain

TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.1, torch.float16: 0.05}
"""Largest relative error of a row's logits; a wrong mask in float32 is far above it, rounding far below."""
KNOWN_LAYERS = {"full_attention", "sliding_attention"}


class UnsupportedArchitecture(ValueError):
    """The checkpoint's architecture cannot be decoded exactly as a token tree."""


def check_config(model: PreTrainedModel) -> None:
    """Raises UnsupportedArchitecture for what the configuration alone rules out."""
    config = model.config.get_text_config(decoder=True)
    name = type(model).__name__
    if model.config.is_encoder_decoder:
        raise UnsupportedArchitecture(f"{name} is an encoder-decoder; only decoder-only models have a token tree")
    unknown = sorted(set(getattr(config, "layer_types", None) or KNOWN_LAYERS) - KNOWN_LAYERS)
    if unknown:
        raise UnsupportedArchitecture(
            f"{name} has layers of type {', '.join(unknown)}; "
            f"only {' and '.join(sorted(KNOWN_LAYERS))} can branch exactly"
        )


def check_tree(model: CausalModel) -> None:
    """Raises UnsupportedArchitecture if the model's answers for a tree are not those for its paths."""
    name = type(model.model).__name__
    trunk, tree = _probe(model.vocab_size)
    try:
        logits, seen = _tree_logits(model, trunk, tree)
    except (TypeError, AttributeError, ValueError, IndexError, RuntimeError) as error:
        raise UnsupportedArchitecture(f"{name} cannot be run with a token tree: {error}") from error
    if sorted(seen) != list(range(model.num_layers)):
        raise UnsupportedArchitecture(
            f"{name} calls transformers' attention interface in {len(set(seen))} of its {model.num_layers} layers; "
            "the others would see the whole tree instead of their own path"
        )
    for row in range(len(tree)):
        path = [*trunk, *tree.tokens[tree.path(row)].tolist()]
        expected = _own_logits(model, path)
        error = ((logits[row] - expected).norm() / (expected - expected.mean()).norm().clamp_min(1e-9)).item()
        if not error <= TOLERANCE.get(model.dtype, 0.1):
            raise UnsupportedArchitecture(
                f"{name} gives other logits for a token tree than for its paths (relative error {error:.2g}); "
                "its output would not be exact"
            )


def _probe(vocab_size: int) -> tuple[list[int], TokenTree]:
    """A few cached tokens, and a root with two branches."""
    tokens = [(7 + 31 * i) % vocab_size for i in range(10)]
    builder = TreeBuilder(tokens[5])
    left = builder.add(tokens[6], 0)
    right = builder.add(tokens[7], 0)
    builder.add(tokens[8], left)
    builder.add(tokens[9], right)
    return tokens[:5], builder.build()


def _tree_logits(model: CausalModel, trunk: list[int], tree: TokenTree) -> tuple[Tensor, list[int]]:
    cache = model.make_cache(len(trunk) + len(tree))
    model.forward(chain(trunk), cache, num_logits=1)
    cache.keep(range(len(trunk)))
    logits, step = model.forward_seen(tree, cache, num_logits=len(tree))
    return logits, step.layers_seen


@torch.inference_mode()
def _own_logits(model: CausalModel, path: list[int]) -> Tensor:
    """[V] float32 logits of the last token by transformers' eager attention, with no cache."""
    model.model.set_attn_implementation("eager")
    try:
        tokens = torch.tensor([path], device=model.device)
        return model.model(input_ids=tokens, use_cache=False, logits_to_keep=1).logits[0, -1].float()
    finally:
        model.model.set_attn_implementation(attention.NAME)
