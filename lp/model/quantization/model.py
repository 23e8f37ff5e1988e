"""Makes a model of tensors that are named as its parameters, some of which are quantised."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from accelerate import init_empty_weights
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from transformers import PreTrainedConfig, PreTrainedModel

from lp.model.errors import CheckpointError
from lp.model.language_model import make_language_model
from lp.model.quantization.experts import compute_quantized, expert_weights, is_transposed
from lp.model.quantization.parameter import QuantizedParameter
from lp.model.quantization.weight import QuantizedWeight
from lp.model.weight_files import FileKey, WeightFiles


def empty_model(config: PreTrainedConfig, dtype: torch.dtype) -> PreTrainedModel:
    """A model whose parameters have shapes but no memory. Computed buffers (rotary embeddings) are there.

    It has no towers for images or sound, and does not know that its checkpoint is quantised.
    """
    config = copy.deepcopy(config)
    for one in (config, config.get_text_config(decoder=True)):
        if hasattr(one, "quantization_config"):
            delattr(one, "quantization_config")
    with init_empty_weights(include_buffers=False), _ExpertsOnMeta():
        return make_language_model(config, dtype)


class _ExpertsOnMeta(TorchFunctionMode):
    """Makes new tensors of three dimensions, the weights of a layer's experts, without memory from the start.

    All others are there until they are registered; those of the largest layers of experts would not fit.
    """

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.empty and len(args) == 3:
            kwargs = {**kwargs, "device": "meta"}
        return func(*args, **kwargs)


def twins_of(model: PreTrainedModel) -> dict[str, str]:
    """The other one of two tied parameters, for both. A file need not have more than one of them."""
    ties = model.all_tied_weights_keys
    return {**ties, **{source: target for target, source in ties.items()}}


def takes_quantized(model: nn.Module, name: str) -> bool:
    """Whether a parameter may be quantised: the weight of a product or of experts, or a table of embeddings."""
    owner, _, last = name.rpartition(".")
    module = model.get_submodule(owner)
    return last in expert_weights(module) or (last == "weight" and isinstance(module, nn.Linear | nn.Embedding))


def as_parameter(model: nn.Module, name: str, weight: QuantizedWeight, device: torch.device) -> nn.Parameter:
    """The parameter of a model of this name whose numbers are those of a weight."""
    content = QuantizedParameter(weight, device, is_transposed=is_transposed(model, name))
    return nn.Parameter(content, requires_grad=False)


def fill(model: PreTrainedModel, tensors: Mapping[str, Tensor | QuantizedWeight], device: torch.device) -> None:
    """Gives all parameters and buffers of an empty model their contents, by name; a tied one need not be there.

    Raises CheckpointError for one that is missing or has another shape.
    """
    twins = twins_of(model)
    filled: dict[int, nn.Parameter] = {}
    for name, empty in list(model.state_dict(keep_vars=True).items()):
        found = tensors.get(name)
        if found is None:
            found = tensors.get(twins.get(name, name))
        if found is None:
            raise CheckpointError(f"the weights have no tensor {name}, which the model needs")
        content = as_parameter(model, name, found, device) if isinstance(found, QuantizedWeight) else found
        if content.shape != empty.shape:
            raise CheckpointError(f"the tensor {name} is {list(content.shape)} and must be {list(empty.shape)}")
        owner, _, last = name.rpartition(".")
        module = model.get_submodule(owner)
        if last not in module._parameters:
            assert isinstance(found, Tensor), "buffers are not quantised"
            module._buffers[last] = found.to(device)
            continue
        if id(found) not in filled:
            is_made = isinstance(content, nn.Parameter)
            filled[id(found)] = content if is_made else nn.Parameter(content.to(device), requires_grad=False)
        module._parameters[last] = filled[id(found)]
    for module in model.modules():  # computed buffers
        for name, buffer in module._buffers.items():
            module._buffers[name] = None if buffer is None else buffer.to(device)
    compute_quantized(model)


def without_twins(files: WeightFiles, model: PreTrainedModel, names: Mapping[str, FileKey]) -> dict[str, FileKey]:
    """What `WeightFiles.names` gives, without tied parameters that the files have twice."""
    names = dict(names)
    for target, source in model.all_tied_weights_keys.items():
        one, other = names.get(target), names.get(source)
        if not isinstance(one, str) or not isinstance(other, str) or not {one, other} <= set(files.keys):
            continue
        if torch.equal(files.view(one), files.view(other)):
            del names[target]
    return names
