"""Ways of running one model: each kind of attention, transformers' own code and the fast forward."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from torch._inductor import config as inductor
from transformers import PreTrainedModel

from lp.model.causal import CausalModel
from lp.model.fast.choose import CompileMode, make_fast
from lp.model.kernels import AttentionKind


@dataclass(frozen=True)
class Variant:
    """compile: on or off."""

    attention: AttentionKind
    compile: CompileMode

    def name(self, model: CausalModel) -> str:
        """With the attention that auto stands for, and what the fast forward is on the model's device."""
        fast = "graphs" if model.device.type == "cuda" else "compiled"
        return f"{model.attention_kind}, {fast if self.compile is CompileMode.on else 'eager'}"


def run_in(way: Variant, model: PreTrainedModel, max_length: int, eos: list[int], folder: Path) -> CausalModel:
    """A model run in this way; variants share its weights. folder: where compiled code is kept.

    Raises ValueError if the way cannot be had here.
    """
    causal = CausalModel(model, max_length, eos, way.attention)
    make_fast(causal, way.compile, folder)
    return causal


def marked(model: CausalModel, folder: Path) -> CausalModel:
    """The same, whose parts a profiler can tell apart: compiled code with marks, which cost time, and in place of
    graphs, which hide them, the kernels that they replay. folder: empty, for what is compiled.
    """
    own = CausalModel(model.model, model.max_length, model.eos, model.attention_kind)
    if model.fast and model.device.type == "cpu":
        with inductor.patch({"cpp.enable_kernel_profile": True}):
            make_fast(own, CompileMode.on, folder)
    return own
