"""What transformers itself answers to small trees, and how far other right answers may be from it.

The allowed error is a multiple of the difference between transformers' own attention kernels on the same text. So what
is rounding in one model and number format is told from a fault, however much rounding a model amplifies. Knows nothing
of tree attention.

    P probes, R rows of a tree, V vocabulary
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median_low

import torch
from torch import Tensor

from lp.model import attention, wider_eager
from lp.model.causal import CausalModel
from lp.model.gpu.device import attention_of_torch, current
from lp.model.own_attention import set_attention
from lp.model.probes import Probes, spread_probes
from lp.tree import TokenTree, TreeBuilder

# The allowed error, as a multiple of the median difference between transformers' kernels.
MULTIPLE = 3.0
# The least and the most error that is ever allowed. The least is that of a few roundings; where the kernels differ by
# more than the most, their logits have little to do with one another.
FLOOR = {torch.float32: 1e-4, torch.bfloat16: 0.03, torch.float16: 4e-3}
CEILING = {torch.float32: 0.02, torch.bfloat16: 0.5, torch.float16: 0.25}
# The number of cached tokens before a tree, and the longest sliding window past whose end there are trees as well.
NUM_CACHED, LONGEST_WINDOW = 5, 64
# Of a longer text, on a GPU: the number of cached tokens, and of those that are computed with a tree, as the end of a
# prompt is. They are more rows than graphs hold. And the number of texts that are long.
PROMPT_CACHED, PROMPT_ROWS, PROMPT_TEXTS = 40, 300, 3
# Rows of the tree on each of its two paths.
PATHS = ((0, 1, 3), (0, 2, 4))


@dataclass(frozen=True)
class Probe:
    """A small tree after a few tokens. logits: [R, V] float32, transformers' own for each row's path. num_computed: how
    many of the last of these tokens a fast forward computes with the tree; the others are cached.
    """

    trunk: list[int]
    tree: TokenTree
    logits: Tensor
    num_computed: int = 0

    def error(self, found: Tensor) -> float:
        """The largest relative error of any row. found: [n, V], the logits of the first n rows."""
        return max(relative_error(row, own) for row, own in zip(found, self.logits, strict=False))


@dataclass(frozen=True)
class Reference:
    """Probes with transformers' own logits, and the error that is allowed for the median probe."""

    probes: list[Probe]
    allowed: float

    def error(self, found: Iterable[Tensor]) -> float:
        """The median of the probes' errors, as rounding may route rows of some probe to other experts.

        found: the logits of each probe's tree.
        """
        return median_low(probe.error(logits) for probe, logits in zip(self.probes, found, strict=True))


def make_references(model: CausalModel, probes: Probes | None = None) -> list[Reference]:
    """Runs every path of the probes' trees with transformers' attention.

    probes: texts as tokens; None or none stands for made-up ones. A model with a short sliding window gets a second
    reference, whose trees lie past the window's end; there, one key more or less makes a smaller difference. On a GPU
    there is one of a prompt as well.
    """
    texts = (probes or spread_probes(model.vocab_size))[: 3 if model.dtype == torch.float32 else 5]
    window = sliding_window(model)
    lengths = [NUM_CACHED]
    if window and NUM_CACHED <= window <= LONGEST_WINDOW:
        lengths.append(min(window + 2, model.max_length - len(PATHS[0])))
    chunk = chunk_size(model)
    if chunk and NUM_CACHED < chunk <= LONGEST_WINDOW:
        lengths.append(min(chunk - 1, model.max_length - len(PATHS[0])))  # a tree's paths cross the end of a chunk
    references = [_make_reference(model, texts, length) for length in lengths]
    if model.device.type == "cuda":
        length = min(PROMPT_CACHED + PROMPT_ROWS, model.max_length - len(PATHS[0]))
        references.append(_make_reference(model, texts[:PROMPT_TEXTS], length, max(0, length - PROMPT_CACHED)))
    return references


def _make_reference(
    model: CausalModel, texts: Sequence[Sequence[int]], num_tokens: int, num_computed: int = 0
) -> Reference:
    """num_tokens: before each tree. num_computed: see Probe."""
    parts = [_split(text, num_tokens, model.vocab_size) for text in texts]
    paths = [[*trunk, *tree.tokens[list(rows)].tolist()] for trunk, tree in parts for rows in PATHS]
    expected = _by_row(_own_logits(model, paths, "eager"))
    others = _by_row(_own_logits(model, paths, wider_eager.NAME if _needs_eager(model) else "sdpa"))
    probes = [Probe(*part, logits, num_computed) for part, logits in zip(parts, expected, strict=True)]
    rounding = median_low(probe.error(other) for probe, other in zip(probes, others, strict=True))
    return Reference(probes, min(max(MULTIPLE * rounding, FLOOR[model.dtype]), CEILING[model.dtype]))


def relative_error(found: Tensor, expected: Tensor) -> float:
    """The norm of the difference of logits, divided by the norm of the expected ones around their mean.

    It is infinite if some logits are not finite.
    """
    error = ((found - expected).norm() / (expected - expected.mean()).norm().clamp_min(1e-9)).item()
    return error if math.isfinite(error) else math.inf


def sliding_window(model: CausalModel) -> int | None:
    """The sliding window in the model's configuration, if a layer held here uses it and texts can be longer."""
    config = model.model.config.get_text_config(decoder=True)
    layers = getattr(config, "layer_types", None)
    window = getattr(config, "sliding_window", None)
    is_used = layers is None or "sliding_attention" in {layers[layer] for layer in model.layers}
    return window if window and is_used and window < model.max_length else None


def chunk_size(model: CausalModel) -> int | None:
    """The size of chunks in the model's configuration, if a layer held here has chunks and texts can be longer."""
    config = model.model.config.get_text_config(decoder=True)
    layers = getattr(config, "layer_types", None)
    if not layers or attention.CHUNKED not in {layers[layer] for layer in model.layers}:
        return None
    return config.attention_chunk_size if config.attention_chunk_size < model.max_length else None


def _needs_eager(model: CausalModel) -> bool:
    """Whether only transformers' eager attention computes the model, as sdpa knows no softcap."""
    config = model.model.config.get_text_config(decoder=True)
    return bool(getattr(config, "attn_logit_softcapping", None)) or not model.model._supports_sdpa


def _split(text: Sequence[int], num_tokens: int, vocab_size: int) -> tuple[list[int], TokenTree]:
    """A trunk and a tree of two branches of two rows, from a text, which is repeated if it is too short."""
    tokens = [text[place % len(text)] % vocab_size for place in range(num_tokens + 5)]
    builder = TreeBuilder(tokens[num_tokens])
    left, right, after_left, after_right = tokens[num_tokens + 1 :]
    for token, parent in ((left, 0), (right, 0), (after_left, 1), (after_right, 2)):
        builder.add(token, parent)
    return tokens[:num_tokens], builder.build()


def _by_row(logits: Tensor) -> Tensor:
    """[2P, 3, V] logits of the last three tokens of every path -> [P, R, V] of every row."""
    left, right = logits[0::2], logits[1::2]
    return torch.stack([left[:, 0], left[:, 1], right[:, 1], left[:, 2], right[:, 2]], dim=1)


@torch.inference_mode()
def _own_logits(model: CausalModel, paths: list[list[int]], kernel: str) -> Tensor:
    """[2P, 3, V] float32 logits of the last three tokens of each path, by a kernel of transformers, without a cache."""
    wider_eager.register()
    set_attention(model.model, kernel)
    try:
        tokens = torch.tensor(paths, device=model.device)
        with current(model.device), attention_of_torch(model.device):
            return model.model(input_ids=tokens, use_cache=False, logits_to_keep=len(PATHS[0])).logits.float()
    finally:
        set_attention(model.model, attention.NAME)
