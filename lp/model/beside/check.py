"""Whether a second model can be used beside the first one, as far as is known without weights."""

from __future__ import annotations

import copy

from transformers import PreTrainedConfig

from lp.model.beside.settings import SecondModel
from lp.model.checkpoint_info import CheckpointInfo, read_checkpoint_info
from lp.model.errors import CheckpointError


def read_second_info(second: SecondModel, role: str, first: CheckpointInfo) -> CheckpointInfo:
    """All of the second checkpoint but its weights. Raises CheckpointError if it cannot be used beside the first."""
    try:
        known = read_checkpoint_info(second.path)
    except CheckpointError as error:
        raise CheckpointError(f"{role}.path={second.path}: {error}") from error
    require_same_vocabulary(known, first, role)
    return known


def check_second(second: SecondModel, role: str, first: CheckpointInfo) -> None:
    """Raises ValueError if a second model cannot be used beside the first one, as far as is known without weights."""
    second.check(role)
    if second.path:
        read_second_info(second, role, first)
    else:
        with_first_layers(first.config, second.layers, role)


def require_same_vocabulary(second: CheckpointInfo, first: CheckpointInfo, role: str) -> None:
    """Raises CheckpointError, naming both models, unless all token ids mean the same in both.

    The weights of one may have more rows than its tokenizer has tokens, as they are often padded.
    """
    tokens, own = vocabulary_of(second), vocabulary_of(first)
    if tokens == own:
        return
    differing = sorted((item for item in tokens.items() ^ own.items()), key=lambda item: (item[1], item[0]))
    token, number = differing[0]
    raise CheckpointError(
        f"{role}.path: the model {second.path!r} has another vocabulary ({len(tokens):,} tokens) than {first.path!r} "
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
        mend = f"give from 1 to {whole - 1}" if whole > 1 else f"give another model by {role}.path"
        raise ValueError(f"{role}.layers={num_layers} must be fewer than the model's own, and it has {whole}; {mend}")
    text.num_hidden_layers = num_layers
    if isinstance(kinds := getattr(text, "layer_types", None), list):
        text.layer_types = kinds[:num_layers]
    return shorter
