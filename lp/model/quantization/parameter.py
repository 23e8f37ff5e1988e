"""Parameters of a model whose numbers are quantised: products with them, and lookups in them, are all that there is.

A model's modules stay as they are. Their products unpack some outputs at a time, which is exact and slow, or read
numbers that have been unpacked as a whole; recorded, products and lookups are steps of the program, for which devices
have kernels.

N outputs, K inputs
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from lp.model.program.record import recorder
from lp.model.quantization.weight import QuantizedWeight


class QuantizedParameter(Tensor):
    """A parameter [N, K] without memory of its own, in the dtype and on the device of the model.

    unpacked: all numbers [N, K] in that dtype, if they are kept; see `keep_unpacked`.
    """

    quantized: QuantizedWeight
    unpacked: Tensor | None

    @staticmethod
    def __new__(cls, quantized: QuantizedWeight, device: torch.device) -> QuantizedParameter:
        shape = quantized.num_outputs, quantized.num_inputs
        return Tensor._make_wrapper_subclass(cls, shape, dtype=quantized.dtype, device=device)

    def __init__(self, quantized: QuantizedWeight, device: torch.device):
        self.quantized = quantized
        self.unpacked = None

    def free(self) -> None:
        """Gives the memory of the numbers back. They cannot be read any more."""
        self.unpacked = None
        self.quantized.free()

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is functional.linear:
            return _multiply(*args, **kwargs)
        if func is functional.embedding:
            return _look_up(*args, **kwargs)
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **kwargs)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.detach.default:
            return QuantizedParameter(args[0].quantized, args[0].device)
        raise NotImplementedError(f"{func.__name__} on quantised weights")


def _multiply(x: Tensor, weight: QuantizedParameter, bias: Tensor | None = None) -> Tensor:
    """functional.linear."""
    quantized = weight.quantized
    flat = x.reshape(-1, quantized.num_inputs)
    if (active := recorder()) is not None:
        shape = len(flat), quantized.num_outputs
        arguments = (flat, quantized) if bias is None else (flat, quantized, bias)
        out = active.note("quantized_product", arguments, shape, x.dtype)
    elif weight.unpacked is not None:
        out = functional.linear(flat, weight.unpacked, bias)
    else:
        parts = [flat @ some.to(device=x.device, dtype=x.dtype).t() for some in quantized.dequantized()]
        out = torch.cat(parts, dim=1)
        out = out if bias is None else out + bias
    return out.reshape(*x.shape[:-1], quantized.num_outputs)


def _look_up(tokens: Tensor, table: QuantizedParameter, *args: Any, **kwargs: Any) -> Tensor:
    """functional.embedding, whose other arguments matter to training alone."""
    quantized = table.quantized
    if (active := recorder()) is not None:
        return active.note("quantized_lookup", (tokens, quantized), (*tokens.shape, quantized.num_inputs), table.dtype)
    return quantized.rows(tokens.to(quantized.device)).to(device=tokens.device, dtype=table.dtype)


def keep_unpacked(model: nn.Module, most_bytes: float) -> None:
    """Unpacks all quantised parameters of a model for its own forward, if that takes at most so many bytes."""
    found = quantized_parameters(model)
    if sum(one.numel() * one.dtype.itemsize for one in found) > most_bytes:
        return
    for one in found:
        one.unpacked = _unpacked(one)


def drop_unpacked(model: nn.Module) -> None:
    """Gives back what `keep_unpacked` has taken."""
    for one in quantized_parameters(model):
        one.unpacked = None


def unpack_parameters(model: nn.Module) -> None:
    """Puts plain parameters in the place of quantised ones, one after the other."""
    plain: dict[int, nn.Parameter] = {}
    for one in quantized_parameters(model):
        plain[id(one.quantized)] = nn.Parameter(_unpacked(one), requires_grad=False)
        one.free()
    for module in model.modules():
        for name, one in module._parameters.items():
            if isinstance(one, QuantizedParameter):
                module._parameters[name] = plain[id(one.quantized)]


def quantized_parameters(model: nn.Module) -> list[QuantizedParameter]:
    """Those of a model, with weights that are tied once."""
    found = (one for one in model.parameters() if isinstance(one, QuantizedParameter))
    return [*{id(one.quantized): one for one in found}.values()]


def _unpacked(one: QuantizedParameter) -> Tensor:
    """[N, K] in the dtype of the model."""
    if one.unpacked is not None:
        return one.unpacked
    whole, begin = torch.empty(one.shape, dtype=one.dtype, device=one.device), 0
    for some in one.quantized.dequantized():
        whole[begin : begin + len(some)] = some
        begin += len(some)
    return whole
