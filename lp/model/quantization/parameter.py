"""Parameters of a model whose numbers are quantised: products with them, and lookups in them, are all that there is.

A model's modules stay as they are. Their products unpack some outputs at a time, which is exact and slow, or read
numbers that have been unpacked as a whole; recorded, products and lookups are steps of the program, for which devices
have kernels.

N outputs, K inputs, E experts
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from lp.model.program.record import recorder
from lp.model.quantization.joined import QuantizedExperts
from lp.model.quantization.part import unpack
from lp.model.quantization.weight import QuantizedWeight

# The property itself.
TRANSPOSED: Any = Tensor.T


class QuantizedParameter(Tensor):
    """A parameter [N, K] without memory of its own, in the dtype and on the device of the model, or [K, N] if it is
    transposed. That of experts is [E, N, K], or [E, K, N].

    has_zeros: whether there is a row of zeros behind the rows of the weight, in a table of embeddings. unpacked: all
    numbers of the weight [N, K] in that dtype, those of experts one below the other, if they are kept; see
    `keep_unpacked`.
    """

    quantized: QuantizedWeight
    has_zeros: bool
    is_transposed: bool
    unpacked: Tensor | None

    @staticmethod
    def __new__(
        cls, quantized: QuantizedWeight, device: torch.device, has_zeros: bool = False, is_transposed: bool = False
    ) -> QuantizedParameter:
        shape = quantized.num_outputs + has_zeros, quantized.num_inputs
        shape = shape[::-1] if is_transposed else shape
        if isinstance(quantized, QuantizedExperts):
            num_experts = len(quantized.experts)
            of_one = quantized.num_outputs // num_experts, quantized.num_inputs
            shape = num_experts, *(of_one[::-1] if is_transposed else of_one)
        return Tensor._make_wrapper_subclass(cls, shape, dtype=quantized.dtype, device=device)

    def __init__(
        self, quantized: QuantizedWeight, device: torch.device, has_zeros: bool = False, is_transposed: bool = False
    ):
        self.quantized = quantized
        self.has_zeros = has_zeros
        self.is_transposed = is_transposed
        self.unpacked = None

    def with_zeros(self) -> QuantizedParameter:
        """The same weight with a row of zeros behind its rows."""
        return QuantizedParameter(self.quantized, self.device, has_zeros=True)

    def transposed(self) -> QuantizedParameter:
        """The same weight as [K, N]."""
        other = QuantizedParameter(self.quantized, self.device, is_transposed=not self.is_transposed)
        other.unpacked = self.unpacked
        return other

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
        if func is Tensor.__getitem__ and args[0].dim() == 2 and (found := _pick(*args)) is not None:
            return found
        if func == TRANSPOSED.__get__ and args[0].dim() == 2:
            return args[0].transposed()
        if func is Tensor.matmul and isinstance(args[1], QuantizedParameter) and args[1].is_transposed:
            return _multiply(*args)
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **kwargs)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.detach.default:
            own = args[0]
            return QuantizedParameter(own.quantized, own.device, own.has_zeros, own.is_transposed)
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
    return _read_rows(table, tokens)


def _pick(table: QuantizedParameter, places: Any) -> Tensor | None:
    """table[places] for the number of a row or a tensor of such numbers; None for any other places."""
    row = places[0] if isinstance(places, tuple) and places[1:] == (slice(None),) else places
    if isinstance(row, int):  # it is the same row in every step, so a recording has its numbers
        return _read_rows(table, torch.tensor(row, device=table.device))
    return _look_up(row, table) if isinstance(row, Tensor) and row.dtype == torch.int64 else None


def _read_rows(table: QuantizedParameter, numbers: Tensor) -> Tensor:
    """The rows of a table with these numbers, on their device and in the table's dtype."""
    quantized = table.quantized
    places = numbers.to(quantized.device)
    rows = quantized.rows(places.clamp(max=quantized.num_outputs - 1) if table.has_zeros else places)
    if table.has_zeros:
        rows = torch.where(places[..., None] < quantized.num_outputs, rows, 0.0)
    return rows.to(device=numbers.device, dtype=table.dtype)


def keep_unpacked(model: nn.Module, most_bytes: float) -> None:
    """Unpacks all quantised parameters of a model for its own forward, if that takes at most so many bytes more."""
    found = [one for one in quantized_parameters(model) if not one.has_zeros and one.unpacked is None]
    if sum(one.numel() * one.dtype.itemsize for one in found) > most_bytes:
        return
    for one in found:
        one.unpacked = unpack(one.quantized, None, one.device)


def drop_unpacked(model: nn.Module) -> None:
    """Gives back what `keep_unpacked` has taken."""
    for one in quantized_parameters(model):
        one.unpacked = None


def unpack_parameters(model: nn.Module) -> None:
    """Puts plain parameters in the place of quantised ones, one after the other."""
    plain: dict[int, nn.Parameter] = {}
    for one in quantized_parameters(model):
        found = unpack(one.quantized, None, one.device) if one.unpacked is None else one.unpacked
        if isinstance(one.quantized, QuantizedExperts):
            found = found.view(len(one.quantized.experts), -1, one.quantized.num_inputs)
            found = found.mT if one.is_transposed else found
        plain[id(one.quantized)] = nn.Parameter(found, requires_grad=False)
        one.free()
    for module in model.modules():
        for name, one in module._parameters.items():
            if isinstance(one, QuantizedParameter):
                module._parameters[name] = plain[id(one.quantized)]


def quantized_parameters(model: nn.Module) -> list[QuantizedParameter]:
    """Those of a model, with weights that are tied once."""
    found = (one for one in model.parameters() if isinstance(one, QuantizedParameter))
    return [*{id(one.quantized): one for one in found}.values()]
