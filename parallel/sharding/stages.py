"""Splits a Hugging Face model into the stages of a pipeline. Each stage holds consecutive layers; the first one also
holds the embedding, and the last one the norm and the head.

The split is applied from outside, by a plan (plans.py). Modules without weights stand in for the layers of other
stages, so that the list of layers keeps its length and layer indices, layer types and masks stay right. Hidden states
come in and go out through the current `Step`. Knows nothing of ranks, or of how hidden states travel.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel

from lp.model.attention import Step
from lp.model.checkpoint import Reader
from lp.model.current_step import current_step
from lp.model.exactness import UnsupportedArchitecture
from lp.model.memory import num_weight_bytes
from lp.model.quantization.model import empty_model
from lp.model.quantization.quantize import Weights
from lp.model.recurrent.kinds import recurrent_layers
from parallel.sharding.plans import RETURN_MORE, has_pipeline_plan, pipeline_plan
from parallel.sharding.weights import fill

_NUM_PLACEHOLDERS = 251
# The scale of untrained embeddings. What the layers add must outweigh it when their exactness is checked.
_PLACEHOLDER_SCALE = 0.02


def read_stage(index: int, num_stages: int) -> Reader:
    """The Reader of one stage. It raises ValueError if there are more stages than layers."""

    def read(
        path: str, config: PreTrainedConfig, dtype: torch.dtype, device: torch.device, weights: Weights
    ) -> tuple[PreTrainedModel, list[int]]:
        check_stages(config, num_stages)
        model = empty_model(config, dtype)
        layers = cut_stage(model, index, num_stages)
        fill(model, path, config, dtype, device, weights=weights)
        return model, layers

    return read


def check_stages(config: PreTrainedConfig, num_stages: int) -> None:
    """Checks that a model can be split into stages.

    Raises ValueError if it has fewer layers, or recurrent layers, than stages, or UnsupportedArchitecture if it has no
    plan.
    """
    text: Any = config.get_text_config(decoder=True)
    name = (config.architectures or [config.model_type])[0]
    if not has_pipeline_plan(config):
        raise UnsupportedArchitecture(f"{name} has no pipeline-parallel plan; use parallel=lp, or parallel=single")
    if num_stages > text.num_hidden_layers:
        raise ValueError(
            f"parallel.pp={num_stages} is more than the {text.num_hidden_layers} layers of {name}: use "
            f"parallel.pp={text.num_hidden_layers} or less, or parallel=lp"
        )
    num_recurrent = len(recurrent_layers(config))
    if 0 < num_recurrent < num_stages:
        raise ValueError(
            f"parallel.pp={num_stages} is more than the {num_recurrent} recurrent layers of {name}, and a stage needs "
            f"one: use parallel.pp={num_recurrent} or less, or parallel=lp"
        )


def cut_stage(model: PreTrainedModel, index: int, num_stages: int) -> list[int]:
    """Removes from a model, in place, what other stages hold. Returns the indices of the layers that it keeps.

    Raises UnsupportedArchitecture for a model whose plan does not cover all weights.
    """
    parts = _find_parts(model)
    # Stages are to take equally long. A step looks up some rows of the embedding alone, and a prompt has one row of the
    # head, which steps that decode read whole.
    ends = sum(num_weight_bytes(model.get_submodule(name)) for name in parts.ends)
    sizes = [num_weight_bytes(layer) for layer in parts.layers]
    # What is kept of a step follows from the states that it leaves, so each stage has some.
    own = share_out(sizes, num_stages, ends // 2, recurrent_layers(model.config))[index]
    config: Any = model.config.get_text_config(decoder=True)
    returns_more = config.model_type in RETURN_MORE
    for layer in range(len(parts.layers)):
        if layer not in own:
            stand_in = EarlierLayer if layer < own.start else LaterLayer
            parts.layers[layer] = stand_in(returns_more, kinds_of(parts.layers[layer]))
    if index > 0:
        for name in parts.embeddings:
            model.set_submodule(name, PlaceholderEmbedding(config.hidden_size, model.dtype))
    if index < num_stages - 1:
        for name in parts.ends:
            model.set_submodule(name, nn.Identity())
    return list(own)


def share_out(sizes: Sequence[int], num_stages: int, last: int = 0, needed: Collection[int] = ()) -> list[range]:
    """Gives each stage a range of layers, as evenly as possible: the sum of the squares of the stages' sizes is least.

    sizes: size of each layer; there must be at least as many layers as stages. last: size of what the last stage
    computes in addition to layers. needed: layers of which each stage gets at least one, if there are any; there must
    be at least as many as stages.
    """
    sums = [0, *accumulate(sizes)]
    num_needed = [0, *accumulate(layer in needed or not needed for layer in range(len(sizes)))]
    # By the number of layers given to the stages so far: the least sum of squares, and where these stages end.
    best: dict[int, tuple[int, tuple[int, ...]]] = {0: (0, (0,))}
    for stage in range(num_stages):
        extra = last if stage == num_stages - 1 else 0
        best = {
            end: min(
                (squares + (sums[end] - sums[begin] + extra) ** 2, (*cuts, end))
                for begin, (squares, cuts) in best.items()
                if num_needed[begin] < num_needed[end]
            )
            for end in range(stage + 1, len(sizes) + 1)
            if num_needed[min(best)] < num_needed[end]
        }
    return [range(begin, end) for begin, end in pairwise(best[len(sizes)][1])]


def kinds_of(layer: nn.Module) -> dict[str, str]:
    """The attributes of a layer that are words, by which some models choose what they give it."""
    return {name: value for name, value in vars(layer).items() if isinstance(value, str)}


class _OtherLayer(nn.Module):
    """Stands in for a layer of another stage."""

    def __init__(self, returns_more: bool, kinds: Mapping[str, str]):
        """returns_more: whether the layer returns something behind the hidden states. kinds: see `kinds_of`."""
        super().__init__()
        self._returns_more = returns_more
        self.__dict__.update(kinds)

    def forward(self, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Tensor | tuple[Tensor, None]:
        step: Step | None = current_step()
        if step is not None:
            hidden_states = self.pass_on(hidden_states, step)
        return (hidden_states, None) if self._returns_more else hidden_states

    def pass_on(self, hidden_states: Tensor, step: Step) -> Tensor:
        """What the layer behind this one is given."""
        raise NotImplementedError


class EarlierLayer(_OtherLayer):
    """Stands in for a layer of an earlier stage. Its output is what the stage before has computed. Where nothing has
    come in, it hands on what it was given, and notes that.
    """

    def pass_on(self, hidden_states: Tensor, step: Step) -> Tensor:
        if step.incoming is None:
            step.incoming = hidden_states
        return step.incoming


class LaterLayer(_OtherLayer):
    """Stands in for a layer of a later stage. It hands out what this stage has computed."""

    def pass_on(self, hidden_states: Tensor, step: Step) -> Tensor:
        step.outgoing = hidden_states
        return hidden_states


class PlaceholderEmbedding(nn.Module):
    """Stands in for the first stage's embedding: a random vector for each token, the same in every run.

    It is needed to check a stage's layers by themselves. In a pipeline its output is replaced by the hidden states of
    the stage before.
    """

    def __init__(self, hidden_size: int, dtype: torch.dtype):
        super().__init__()
        table = torch.randn(_NUM_PLACEHOLDERS, hidden_size, generator=torch.Generator().manual_seed(0))
        self.register_buffer("weight", (_PLACEHOLDER_SCALE * table).to(dtype), persistent=False)

    def forward(self, input_ids: Tensor) -> Tensor:
        return nn.functional.embedding(input_ids % _NUM_PLACEHOLDERS, self.get_buffer("weight"))


@dataclass(frozen=True)
class _Parts:
    """Parts of a model. embeddings: names of those of tokens and positions. layers: the list itself. ends: names of the
    norm and the head.
    """

    embeddings: list[str]
    layers: nn.ModuleList
    ends: list[str]


def _find_parts(model: PreTrainedModel) -> _Parts:
    inputs_of = pipeline_plan(model)
    embeddings = [name for name, inputs in inputs_of.items() if inputs in (["input_ids"], ["position_ids"])]
    try:
        modules = {name: model.get_submodule(name) for name in inputs_of}
    except AttributeError as error:
        raise _unfit_plan(model, str(error)) from error
    (layers,) = [module for module in modules.values() if isinstance(module, nn.ModuleList)]
    text: Any = model.config.get_text_config(decoder=True)
    if len(layers) != text.num_hidden_layers:
        raise _unfit_plan(model, f"its {text.num_hidden_layers} layers are in {len(layers)} modules")
    ends = [name for name, inputs in inputs_of.items() if inputs == ["hidden_states"] and modules[name] is not layers]
    planned = {id(weight) for module in modules.values() for weight in module.parameters()}
    unplanned = [name for name, weight in model.named_parameters() if id(weight) not in planned]
    if unplanned:
        raise _unfit_plan(model, f"it leaves out {', '.join(unplanned[:3])}")
    return _Parts(embeddings, layers, ends)


def _unfit_plan(model: PreTrainedModel, reason: str) -> UnsupportedArchitecture:
    return UnsupportedArchitecture(
        f"{type(model).__name__} cannot be cut by its pipeline-parallel plan ({reason}); use "
        "parallel=lp, or parallel=single"
    )
