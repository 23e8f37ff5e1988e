"""Checks that tree attention is exact for a checkpoint's architecture. Every checkpoint is checked when it is loaded.

A model passes if every layer calls tree attention, and if the logits of a small tree equal those of the tree's paths,
each run alone with transformers' own attention.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from transformers import PreTrainedConfig

from lp.model import attention
from lp.model.attention import TreeStep
from lp.model.causal import CausalModel
from lp.tree import TokenTree, TreeBuilder, chain

# The largest relative error of a row's logits that passes. Rounding stays below it; a wrong mask causes more, by the
# smallest margin in bfloat16.
TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.08, torch.float16: 0.04}
KNOWN_LAYERS = {"full_attention", "sliding_attention"}


class UnsupportedArchitecture(ValueError):
    """The checkpoint's architecture cannot be decoded exactly as a token tree."""


def check_config(config: PreTrainedConfig) -> None:
    """Raises UnsupportedArchitecture if the configuration alone shows that trees cannot be decoded exactly."""
    name = (config.architectures or [config.model_type])[0]
    if config.is_encoder_decoder:
        raise UnsupportedArchitecture(f"{name} is an encoder-decoder; only decoder-only models have a token tree")
    layers = getattr(config.get_text_config(decoder=True), "layer_types", None)
    unknown = sorted(set(layers or KNOWN_LAYERS) - KNOWN_LAYERS)
    if unknown:
        raise UnsupportedArchitecture(
            f"{name} has layers of type {', '.join(unknown)}; "
            f"only {' and '.join(sorted(KNOWN_LAYERS))} can branch exactly"
        )


def check_tree(model: CausalModel) -> None:
    """Raises UnsupportedArchitecture if the model's logits for a tree differ from those for the tree's paths."""
    name = type(model.model).__name__
    # In 16 bits rounding may route a row to other experts in some probes; a real fault shows in most of them.
    num_probes = 1 if model.dtype == torch.float32 else 4
    try:
        probed = [_probe(model, number) for number in range(num_probes)]
    except (TypeError, AttributeError, ValueError, IndexError, RuntimeError) as error:
        raise UnsupportedArchitecture(f"{name} cannot be run with a token tree: {error}") from error
    error, step = sorted(probed, key=lambda probe: probe[0])[(num_probes - 1) // 2]
    if sorted(step.layers_seen) != model.layers:
        num_seen = len(set(step.layers_seen))
        raise UnsupportedArchitecture(
            f"{name} calls transformers' attention interface in {num_seen} of its {len(model.layers)} layers; "
            "the others would see the whole tree instead of their own path"
        )
    window = _sliding_window(model)
    if window and step.windows_seen == {None}:
        raise UnsupportedArchitecture(
            f"{name} has a sliding window of {window} tokens but does not tell its attention function; "
            f"use model.max_length={window} or less"
        )
    if error > TOLERANCE[model.dtype]:
        raise UnsupportedArchitecture(
            f"{name} gives other logits for a token tree than for its paths (relative error {error:.2g}); "
            "its output would not be exact"
        )


def _probe(model: CausalModel, number: int) -> tuple[float, TreeStep]:
    """The largest relative error of any row, for a small tree after a few cached tokens; and the tree's step.

    The tree is a root with two branches. number: each number gives other tokens.
    """
    tokens = [(7 + 31 * i + 5 * number) % model.vocab_size for i in range(10)]
    trunk = tokens[:5]
    builder = TreeBuilder(tokens[5])
    left, right = builder.add(tokens[6], 0), builder.add(tokens[7], 0)
    builder.add(tokens[8], left)
    builder.add(tokens[9], right)
    tree = builder.build()
    logits, step = _tree_logits(model, trunk, tree)
    paths = [[*trunk, *tree.tokens[tree.path(row)].tolist()] for row in range(len(tree))]
    return max(relative_error(found, _own_logits(model, path)) for found, path in zip(logits, paths)), step


def relative_error(found: Tensor, expected: Tensor) -> float:
    """The norm of the difference of logits, divided by the norm of the expected ones around their mean.

    It is infinite if some logits are not finite.
    """
    error = ((found - expected).norm() / (expected - expected.mean()).norm().clamp_min(1e-9)).item()
    return error if math.isfinite(error) else math.inf


def _sliding_window(model: CausalModel) -> int | None:
    """The sliding window in the model's configuration, if a layer held here uses it and texts can be longer."""
    config = model.model.config.get_text_config(decoder=True)
    layers = getattr(config, "layer_types", None)
    window = getattr(config, "sliding_window", None)
    is_used = layers is None or "sliding_attention" in {layers[layer] for layer in model.layers}
    return window if window and is_used and window < model.max_length else None


def _tree_logits(model: CausalModel, trunk: list[int], tree: TokenTree) -> tuple[Tensor, TreeStep]:
    """[R, V] float32 logits of the tree's rows after a cached trunk, and the tree's step."""
    cache = model.make_cache(len(trunk) + len(tree))
    model.forward(chain(trunk), cache, num_logits=1)
    cache.keep(range(len(trunk)))
    return model.forward_eager(tree, cache, num_logits=len(tree))


@torch.inference_mode()
def _own_logits(model: CausalModel, path: list[int]) -> Tensor:
    """[V] float32 logits of the last token, by transformers' eager attention and without a cache."""
    model.model.set_attn_implementation("eager")
    try:
        tokens = torch.tensor([path], device=model.device)
        return model.model(input_ids=tokens, use_cache=False, logits_to_keep=1).logits[0, -1].float()
    finally:
        model.model.set_attn_implementation(attention.NAME)
