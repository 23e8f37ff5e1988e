"""Which layers of which families are recurrent, and what takes their place.

Layer types and classes are named as in transformers. A type says what a layer holds, and a class how it is computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel

from lp.model.recurrent.base import RecurrentLayer
from lp.model.recurrent.delta_net import GatedDeltaNet, InterleavedDeltaNet, SeparateDeltaNet
from lp.model.recurrent.lightning_attention import LightningAttention
from lp.model.recurrent.mamba2 import Mamba2, ScaledMamba2
from lp.model.recurrent.selective_scan import SelectiveScan
from lp.model.recurrent.short_convolution import ShortConvolution

# By the class in transformers.
KINDS: dict[str, type[RecurrentLayer]] = {
    "Lfm2ShortConv": ShortConvolution,
    "Lfm2MoeShortConv": ShortConvolution,
    "Qwen3NextGatedDeltaNet": InterleavedDeltaNet,
    "Qwen3_5GatedDeltaNet": GatedDeltaNet,
    "Qwen3_5MoeGatedDeltaNet": GatedDeltaNet,
    "OlmoHybridGatedDeltaNet": SeparateDeltaNet,
    "MiniMaxLightningAttention": LightningAttention,
    "GraniteMoeHybridMambaLayer": Mamba2,
    "BambaMixer": Mamba2,
    "Mamba2Mixer": Mamba2,
    "JambaMambaMixer": SelectiveScan,
    "NemotronHMamba2Mixer": Mamba2,
    "FalconH1Mixer": ScaledMamba2,
}
# The `model_type` of the families whose recurrent layers are all of these classes.
FAMILIES = {
    "lfm2", "lfm2_moe", "qwen3_next", "qwen3_5_text", "qwen3_5_moe_text", "olmo_hybrid", "minimax", "granitemoehybrid",
    "bamba", "nemotron_h", "falcon_h1", "mamba2", "jamba",
}  # fmt: skip
# The types of their layers that have a state, that have no attention, and of all that other families do not have.
WITH_STATE = {"linear_attention", "conv", "hybrid"}
WITHOUT_ATTENTION = {"linear_attention", "conv", "moe", "mlp"}
TYPES = WITH_STATE | WITHOUT_ATTENTION


def is_family(config: PreTrainedConfig) -> bool:
    """Whether the model has recurrent layers, all of which can follow the paths of a tree."""
    return config.get_text_config(decoder=True).model_type in FAMILIES


def recurrent_layers(config: PreTrainedConfig) -> list[int]:
    """The layers of a model that have a state."""
    text: Any = config.get_text_config(decoder=True)
    if not is_family(config):
        return []
    return [layer for layer, kind in enumerate(text.layer_types) if kind in WITH_STATE]


def attention_layers(config: PreTrainedConfig, layers: Sequence[int]) -> list[int]:
    """Those of some layers that have keys and values."""
    text: Any = config.get_text_config(decoder=True)
    if not is_family(config):
        return list(layers)
    return [layer for layer in layers if text.layer_types[layer] not in WITHOUT_ATTENTION]


def replace_layers(model: PreTrainedModel) -> list[RecurrentLayer]:
    """Puts layers that know trees in the place of a model's recurrent ones, with the same weights. Returns them."""
    if not is_family(model.config):
        return []
    found = [(name, KINDS[type(part).__name__], part) for name, part in model.named_modules() if _is_recurrent(part)]
    for name, kind, part in found:
        index: Any = part.layer_idx
        model.set_submodule(name, kind(part, index))
    return [part for part in model.modules() if isinstance(part, RecurrentLayer)]


def restore_layers(model: PreTrainedModel) -> None:
    """Puts a model's own layers back."""
    for name, part in [*model.named_modules()]:
        if isinstance(part, RecurrentLayer):
            model.set_submodule(name, part.mixer)


def _is_recurrent(part: nn.Module) -> bool:
    return type(part).__name__ in KINDS
