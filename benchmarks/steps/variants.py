"""The variants in which one model can be run: each kind of attention, with eager code or with the fast forward."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from torch._inductor import config as inductor

from lp.model.causal import CausalModel
from lp.model.compilation import CompileMode, make_fast
from lp.model.cpu.forward import NativeForward
from lp.model.kernels import AttentionKind


@dataclass(frozen=True)
class ModelVariant:
    """A kind of attention, and whether the fast forward is used. compile: on or off."""

    attention: AttentionKind
    compile: CompileMode

    def name(self, model: CausalModel) -> str:
        """The name in tables: the attention that the model really uses, and the kind of forward on its device."""
        fast = "graphs" if model.device.type == "cuda" else "compiled"
        return f"{model.attention_kind}, {fast if self.compile is CompileMode.on else 'eager'}"


def make_variant(variant: ModelVariant, model: CausalModel, folder: Path) -> CausalModel:
    """The model in this variant; all variants share its weights, and the memory of its caches.

    folder: where compiled code is kept. Raises ValueError if the variant is not available here.
    """
    causal = _like(model, variant.attention)
    make_fast(causal, variant.compile, folder)
    return causal


def _like(model: CausalModel, attention: AttentionKind) -> CausalModel:
    """Another model of the same weights and memory, which may run on the same caches."""
    causal = CausalModel(model.model, model.max_length, model.eos, attention)
    causal.memory, causal.cache_shapes = model.memory, dict(model.cache_shapes)
    return causal


def with_marks(model: CausalModel, folder: Path) -> CausalModel:
    """The same model in a form whose parts a profiler can tell apart.

    Compiled code gets marks, which cost time. In place of graphs, which hide their parts, the kernels are run one by
    one. The native forward tells the times of its parts itself. folder: an empty folder for compiled code.
    """
    if isinstance(model.fast, NativeForward):
        return model
    own = _like(model, model.attention_kind)
    if model.fast and model.device.type == "cpu":
        with inductor.patch({"cpp.enable_kernel_profile": True}):
            make_fast(own, CompileMode.on, folder)
    return own
