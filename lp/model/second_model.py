"""A second causal model with the main model's vocabulary: its settings, what is refused, and how it is loaded.

What it is for (drafts, a comparison of its probabilities) is not known here.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field

from transformers import PreTrainedConfig

from lp.model.causal import CausalModel
from lp.model.checkpoint import check_can_quantize, read_whole, weight_bytes
from lp.model.checkpoint_info import CheckpointInfo, read_checkpoint_info
from lp.model.compilation import CompileMode, make_fast
from lp.model.errors import CheckpointError
from lp.model.exactness import UnsupportedArchitecture, check_tree
from lp.model.extensions import NO_COSTS, ROUND_ROWS, Extension, FindCache
from lp.model.kernels import AttentionKind
from lp.model.memory import DoesNotFit, check_fits, free_memory
from lp.model.probes import text_probes
from lp.model.quantization.quantize import Weights, read_and_quantize
from lp.model.reference import Reference
from lp.platform.disk_cache import folder

# The role of the model that drafts, and the name of its settings.
DRAFT = "draft"
# The role of the model with which decode=contrastive and decode=best_of compare: the name of its settings.
SECOND = "second"


@dataclass
class SecondModel:
    """The settings of a second model.

    path: folder, GGUF file or hub id of a model with the main model's vocabulary; empty is the main model itself.
    layers: of the main model, so many first layers; 0 is all of them. weights: see Weights.

    The main model itself, with all of its layers and in its own format, is no second model.
    """

    path: str = ""
    layers: int = 0
    weights: Weights = Weights.auto

    @property
    def is_there(self) -> bool:
        return bool(self.path or self.layers or self.weights is not Weights.auto)


@dataclass
class SecondModelExtension(Extension):
    """A second model. role: DRAFT or SECOND. holds_all: see Topology."""

    role: str
    settings: SecondModel
    attention: AttentionKind = AttentionKind.auto
    holds_all: bool = False
    model: CausalModel | None = None
    find_cache: FindCache | None = None
    relative_costs: tuple[float, ...] = NO_COSTS
    is_ahead: bool = False
    _own: CheckpointInfo | None = None
    _references: list[Reference] = field(default_factory=list)

    @property
    def shares_memory(self) -> bool:
        is_whole = not self.settings.path and not self.settings.layers
        return self.role == DRAFT and is_whole and self.holds_all

    @property
    def is_optional(self) -> bool:
        return self.shares_memory

    def check(self, known: CheckpointInfo) -> None:
        self._own = self._read_info(known)

    def load(self, main: CausalModel, known: CheckpointInfo) -> None:
        own = self._own
        assert own is not None, "it is checked first"
        config, weights = own.config, self.settings.weights
        if self.settings.layers:
            config = with_first_layers(config, self.settings.layers, self.role)
        probes = text_probes(own.tokenizer)
        num_bytes = weight_bytes(own, main.dtype, weights) if main.device.type == "cuda" else None
        check_fits(own.path, config, main.dtype, main.device, own.max_length, weight_bytes=num_bytes)
        if self.is_optional:
            check_copy_fits(own, main, weights, f"{self.role}.weights={weights}")
        if weights is Weights.auto:
            model, layers = read_whole(own.path, config, main.dtype, main.device)
        else:
            setting = f"{self.role}.weights"
            model, layers = read_and_quantize(own.path, config, main.dtype, main.device, weights, probes, setting)
        self.model = CausalModel(model, min(own.max_length, known.max_length), known.eos, self.attention, layers)
        self._references = check_tree(self.model, probes)
        # A forward of few rows takes the time of reading the weights.
        self.relative_costs = (self.model.weight_bytes / main.weight_bytes,) * len(ROUND_ROWS)

    def attach(self, main: CausalModel, mode: CompileMode) -> None:
        assert self.model is not None, "it is loaded first"
        if self.shares_memory:
            self.model.memory = main.memory
        make_fast(self.model, mode, folder("compiled"), self._references)
        if self.shares_memory and self.model.cache_shapes != main.cache_shapes:
            raise ValueError(
                f"{self.role}.weights={self.settings.weights}: the copy cannot read what the model caches, as only one "
                f"of the two is compiled; use model.compile=off, or no {self.role}.weights"
            )
        self.model.free_weights()
        if self.role == SECOND:
            main.second = self.model

    def _read_info(self, known: CheckpointInfo) -> CheckpointInfo:
        """All of the second checkpoint but its weights; `known` for the main model's own first layers."""
        role, path, layers = self.role, self.settings.path, self.settings.layers
        if layers < 0:
            raise ValueError(f"{role}.layers={layers} must be 0 (none) or a number of the model's first layers")
        if path and layers:
            raise ValueError(
                f"{role}.path={path} and {role}.layers={layers} both name a second model; leave one of them out"
            )
        own = known
        if path:
            try:
                own = read_checkpoint_info(path)
            except CheckpointError as error:
                raise CheckpointError(f"{role}.path={path}: {error}") from error
            require_same_vocabulary(own, known, role)
            if own.plain:
                raise UnsupportedArchitecture(f"{role}.path={path} cannot answer token trees: {own.plain}")
        elif layers:
            with_first_layers(known.config, layers, role)
        if self.settings.weights is not Weights.auto:
            check_can_quantize(own, f"{role}.weights={self.settings.weights}", f"{role}.weights=auto")
        return own


def check_copy_fits(known: CheckpointInfo, main: CausalModel, weights: Weights, setting: str) -> None:
    """Raises DoesNotFit unless there is memory for a copy of the main model. setting: as the user gave it."""
    num_bytes, free = weight_bytes(known, main.dtype, weights), free_memory(main.device)
    assert num_bytes is not None, "a copy has other weights"
    if num_bytes > free:
        raise DoesNotFit(f"{setting}: the copy takes {num_bytes / 1e9:.2g} GB, and {free / 1e9:.2g} GB are free")


def require_same_vocabulary(second: CheckpointInfo, main: CheckpointInfo, role: str) -> None:
    """Raises CheckpointError, naming both models, unless all token ids mean the same in both.

    The weights of one may have more rows than its tokenizer has tokens, as they are often padded.
    """
    tokens, own = vocabulary_of(second), vocabulary_of(main)
    if tokens == own:
        return
    differing = sorted((item for item in tokens.items() ^ own.items()), key=lambda item: (item[1], item[0]))
    token, number = differing[0]
    raise CheckpointError(
        f"{role}.path: the model {second.path!r} has another vocabulary ({len(tokens):,} tokens) than {main.path!r} "
        f"({len(own):,} tokens); they first differ at id {number} ({token!r}). Give a model that was trained with the "
        "same tokenizer"
    )


def vocabulary_of(known: CheckpointInfo) -> dict[str, int]:
    """The ids of all tokens that the model can be given. transformers may add some that it has no weights for."""
    return {token: number for token, number in known.tokenizer.get_vocab().items() if number < known.vocab_size}


def with_first_layers(config: PreTrainedConfig, num_layers: int, role: str) -> PreTrainedConfig:
    """The configuration of a model that has only the first layers of this one. Raises ValueError."""
    shorter = copy.deepcopy(config)
    text = shorter.get_text_config(decoder=True)
    if not 1 <= num_layers < (whole := text.num_hidden_layers):
        fix = f"give from 1 to {whole - 1}" if whole > 1 else f"give another model by {role}.path"
        raise ValueError(f"{role}.layers={num_layers} must be fewer than the model's own, and it has {whole}; {fix}")
    if getattr(text, "num_kv_shared_layers", 0) or getattr(text, "hidden_size_per_layer_input", 0):
        raise ValueError(
            f"{role}.layers={num_layers}: the model's layers share keys and values, or read embeddings of their own, "
            f"so its first layers are no model; give another model by {role}.path"
        )
    text.num_hidden_layers = num_layers
    kinds = getattr(text, "layer_types", None)
    if isinstance(kinds, list) and len(kinds) > num_layers:  # some configurations derive the types from the number
        text.layer_types = kinds[:num_layers]
    return shorter
