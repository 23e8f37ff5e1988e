"""Checks that tree attention is exact for a checkpoint's architecture. Every checkpoint is checked when it is loaded.

A model passes if every layer calls tree attention with its own sliding window, and if the logits of small trees equal
those of the trees' paths, run with transformers' own attention, but for rounding.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from itertools import islice

import torch
from torch import Tensor
from transformers import PreTrainedConfig

from lp.kv_cache.cache import KVCache
from lp.model.attention import CHUNKED, Step, TreeStep
from lp.model.causal import CausalModel
from lp.model.errors import described
from lp.model.fast_forward import SequenceRows
from lp.model.kernels import UnsupportedAttention
from lp.model.language_model import calls_interface
from lp.model.probes import Probes
from lp.model.program.translate import find_step
from lp.model.recurrent.kinds import TYPES, is_family
from lp.model.reference import Probe, Reference, make_references, sliding_window
from lp.model.weightless import weightless_model
from lp.tree import chain

log = logging.getLogger("lookahead")

KNOWN_LAYERS = {"full_attention", "sliding_attention", CHUNKED}

# What transformers' code raises where a model cannot be run with a token tree.
FAILURES = (TypeError, AttributeError, ValueError, IndexError, KeyError, RuntimeError)


class UnsupportedArchitecture(ValueError):
    """The checkpoint's architecture cannot be decoded exactly as a token tree."""


def check_config(config: PreTrainedConfig) -> None:
    """Raises UnsupportedArchitecture if the configuration alone shows that trees cannot be decoded exactly."""
    if config.is_encoder_decoder:
        raise UnsupportedArchitecture(
            f"{_name(config)} is an encoder-decoder; only decoder-only models have a token tree"
        )
    text = config.get_text_config(decoder=True)
    layers = getattr(text, "layer_types", None)
    unknown = sorted(set(layers or KNOWN_LAYERS) - KNOWN_LAYERS - (TYPES if is_family(config) else set()))
    if unknown:
        raise UnsupportedArchitecture(
            f"{_name(config)} has layers of type {', '.join(unknown)}; only {', '.join(sorted(KNOWN_LAYERS))} can "
            "branch exactly"
        )
    if getattr(text, "num_attention_heads", None) is None and not is_family(config):
        raise UnsupportedArchitecture(
            f"{_name(config)} has no attention heads; only attention and some recurrent layers can branch exactly"
        )


def check_forward(config: PreTrainedConfig, max_length: int) -> None:
    """Raises UnsupportedArchitecture if a forward without weights shows that trees cannot be decoded exactly.

    It is run for models alone of which transformers does not say that they call its attention interface. What it does
    not show, such as the use of positions, is left to `check_tree`. max_length: the most tokens of a sequence.
    """
    if is_family(config) or calls_interface(config):
        return
    try:
        model = CausalModel(weightless_model(config, torch.float32), max_length, eos=[])
        step = find_step(model)
    except (TypeError, AttributeError, UnsupportedAttention) as error:
        raise UnsupportedArchitecture(f"{_name(config)} cannot be run with a token tree: {described(error)}") from error
    except FAILURES as error:
        log.debug("%s has no forward without weights: %s", _name(config), error)
        return
    _check_layers(model, step)


def _name(config: PreTrainedConfig) -> str:
    return (config.architectures or [config.model_type])[0]


def check_tree(model: CausalModel, probes: Probes | None = None) -> list[Reference]:
    """Compares the model's logits for small trees with those for the trees' paths; returns the latter.

    probes: texts as tokens; None stands for made-up ones. Raises UnsupportedArchitecture if more than rounding differs.
    """
    name = type(model.model).__name__
    try:
        references = make_references(model, probes)
        logits, step = run_trees(model, [probe for reference in references for probe in reference.probes])
    except FAILURES as error:
        raise UnsupportedArchitecture(f"{name} cannot be run with a token tree: {described(error)}") from error
    _check_layers(model, step)
    for reference in references:
        error = reference.error(islice(logits, len(reference.probes)))
        if error > reference.allowed:
            raise UnsupportedArchitecture(
                f"{name} gives other logits for a token tree than for its paths (relative error {error:.2g}; rounding "
                f"explains up to {reference.allowed:.2g}); its output would not be exact"
            )
    return references


def _check_layers(model: CausalModel, step: Step) -> None:
    """Raises UnsupportedArchitecture unless every layer has called tree attention, with the model's sliding window."""
    name = type(model.model).__name__
    if sorted(step.layers_seen) != model.attention_layers:
        num_seen, num_layers = len(set(step.layers_seen)), len(model.attention_layers)
        raise UnsupportedArchitecture(
            f"{name} calls transformers' attention interface in {num_seen} of its {num_layers} layers; "
            "the others would see the whole tree instead of their own path"
        )
    window = sliding_window(model)
    passed = {seen for seen in step.windows_seen if seen is not None}
    if window and not passed:
        raise UnsupportedArchitecture(
            f"{name} has a sliding window of {window} tokens but does not tell its attention function; "
            f"use model.max_length={window} or less"
        )
    if window and passed != {window}:
        raise UnsupportedArchitecture(
            f"{name} has a sliding window of {window} tokens but tells its attention function "
            f"{', '.join(map(str, sorted(passed)))}; use model.max_length={min(passed | {window})} or less"
        )


def run_trees(model: CausalModel, probes: Sequence[Probe]) -> tuple[Iterator[Tensor], TreeStep]:
    """[R, V] float32 logits of each probe's tree after its cached trunk, and the step of all trees.

    All trunks share a forward, and all trees, as each forward may unpack all weights.
    """
    caches = [model.make_cache(len(probe.trunk) + len(probe.tree)) for probe in probes]
    write_prefixes(model, [probe.trunk for probe in probes], caches)
    logits, step = model.forward_eager(
        [SequenceRows(probe.tree, cache, len(probe.tree)) for probe, cache in zip(probes, caches, strict=True)]
    )
    return iter(logits.split([len(probe.tree) for probe in probes])), step


def write_prefixes(model: CausalModel, prefixes: Sequence[Sequence[int]], caches: Sequence[KVCache]) -> None:
    """Writes the first tokens of some sequences to their caches, in one run of the model's own forward."""
    given = zip(prefixes, caches, strict=True)
    model.forward_eager([SequenceRows(chain(tokens), cache, 1) for tokens, cache in given])
    for tokens, cache in zip(prefixes, caches, strict=True):
        cache.keep(range(len(tokens)))
