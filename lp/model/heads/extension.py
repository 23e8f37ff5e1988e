"""Heads as an extension of a checkpoint."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from torch import Tensor
from torch.nn.functional import linear

from lp.model.causal import CausalModel
from lp.model.checkpoint_info import CheckpointInfo
from lp.model.compilation import CompileMode
from lp.model.errors import CheckpointError
from lp.model.extensions import Extension
from lp.model.heads.files import load_heads
from lp.model.heads.hidden import can_give_hidden, output_of
from lp.model.heads.loaded import LoadedHeads
from lp.model.heads.medusa import HeadsInfo, Output
from lp.model.quantization.parameter import QuantizedParameter
from lp.model.quantization.part import unpack


class HeadsExtension(Extension):
    """The heads in a folder. They cost little, and have no keys and values."""

    role = "heads"

    def __init__(self, folder: Path, info: HeadsInfo):
        self._folder, self._info = folder, info

    def check(self, known: CheckpointInfo) -> None:
        """They were found, and compared with the main model, when its configuration was read."""

    def load(self, main: CausalModel, known: CheckpointInfo) -> None:
        self._heads = load_heads(self._folder, self._info, main.dtype, main.device)

    def attach(self, main: CausalModel, mode: CompileMode) -> None:
        """Heads that share the output embedding keep it where the compiled forward has copies of all weights."""
        if not can_give_hidden(main):
            raise CheckpointError(
                f"model.heads={str(self._folder)!r}: the compiled forward of {type(main.model).__name__} gives no "
                "hidden states; use model.compile=off, or model.heads=off"
            )
        module = output_of(main.model)
        output: Output = module
        if self._info.shares_output and main.fast is not None and main.fast.owns_weights:
            output = partial(linear, **{name: _kept(weight) for name, weight in module.named_parameters()})
        main.heads = LoadedHeads(self._heads, output)


def _kept(weight: Tensor) -> Tensor:
    """The numbers of a parameter, which are still there when the parameter is freed."""
    if isinstance(weight, QuantizedParameter):
        return unpack(weight.quantized, None, weight.device)
    return weight.detach()
