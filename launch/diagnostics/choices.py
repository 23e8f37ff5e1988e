"""What the programs would use for a model with these settings, and why: found by loading it as they do."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import torch

from launch.config.engine_settings import num_ranks
from launch.config.runtime import RuntimeSettings
from launch.diagnostics.findings import Finding
from lp.model.causal import CausalModel
from lp.model.checkpoint import AUTO, Checkpoint, load
from lp.model.compilation import WORTHWHILE, CompileMode
from lp.model.cpu.forward import NativeForward
from lp.model.gpu.cuda_graphs import CapturedForward
from lp.model.gpu.prompts import PromptAttention, describe
from lp.platform.hardware import dtype_name
from parallel.mesh import Mode, ParallelSettings, explain

SECTION = "what is used"


def inspect(settings: RuntimeSettings) -> Iterator[Finding]:
    """Loads the model, and a draft model if the settings name one, on one device; nothing is decoded."""
    reasons = Reasons()
    logger = logging.getLogger("lookahead")
    logger.addHandler(reasons)
    try:
        second_models = settings.second_models(holds_all=True)
        checkpoint = load(settings.model, settings.attention.kind, extensions=second_models)
    except (ValueError, OSError) as error:
        yield Finding(SECTION, "model", f"{settings.model.path} cannot be used: {error}", is_broken=True)
    else:
        yield from of_model(checkpoint, settings, reasons.last)
    finally:
        logger.removeHandler(reasons)
    yield of_ranks(settings.parallel)
    yield from roles(settings)


def of_model(checkpoint: Checkpoint, settings: RuntimeSettings, warning: str) -> Iterator[Finding]:
    """warning: the last one that was logged while it was loaded."""
    model = checkpoint.model
    size = f"{model.weight_bytes / 1e6:.0f} MB of weights, context of {model.max_length} tokens"
    yield Finding(SECTION, "model", f"{checkpoint.name}, {size}", checkpoint.name)
    yield Finding(
        SECTION, "device", f"{model.device}{_why_device(settings.model.device, model.device)}", str(model.device)
    )
    name = dtype_name(model.dtype)
    yield Finding(
        SECTION, "dtype", f"{name}{_why_dtype(settings.model.dtype, model)}", name, _dtype_advice(settings, model)
    )
    yield Finding(SECTION, "attention", str(model.attention_kind))
    yield forward(model, settings.model.compile, warning)
    if isinstance(model.fast, CapturedForward) and model.fast.prompts is not None:
        yield prompts(model.fast.prompts)
    index = "an index of the model's answers gives decode=auto more right drafts: lookahead index MODEL"
    yield Finding(SECTION, "method", f"decode={settings.decode.method}; {index}", settings.decode.method)


def forward(model: CausalModel, mode: CompileMode, warning: str) -> Finding:
    """Which fast forward the model has, or why it has none."""
    kind = type(model.fast).__name__ if model.fast else None
    if isinstance(model.fast, NativeForward):
        return Finding(SECTION, "forward", "native: C++ that was compiled for this model and machine", kind)
    if model.fast:
        graphs = "CUDA graphs of kernels" if model.device.type == "cuda" else "compiled by PyTorch"
        return Finding(SECTION, "forward", f"{graphs} ({kind})", kind)
    if mode is CompileMode.off:
        return Finding(
            SECTION, "forward", "transformers' own, as model.compile=off says", None, "leave model.compile=auto"
        )
    if warning:
        return Finding(
            SECTION, "forward", f"transformers' own: {warning}", None, "see why the forward is not compiled, above"
        )
    return Finding(
        SECTION, "forward", f"transformers' own: below {WORTHWHILE / 1e6:.0f}M parameters compiling does not pay"
    )


def prompts(attention: PromptAttention) -> Finding:
    """Which attention computes the model's prompts."""
    kinds = [f"{describe(trials)}, in layers of {kind.describe()}" for kind, trials in attention.trials.items()]
    return Finding(SECTION, "attention of prompts", "; ".join(kinds))


def of_ranks(parallel: ParallelSettings) -> Finding:
    """How the ranks would share the work."""
    ranks = num_ranks(parallel)
    if ranks == 1:
        return Finding(SECTION, "ranks", "one; --ranks N shows what parallel=auto does with N of them", {"ranks": 1})
    try:
        degrees = parallel.resolve_degrees(ranks)
    except ValueError as error:
        return Finding(SECTION, "ranks", str(error), {"ranks": ranks}, is_broken=True)
    return Finding(SECTION, "ranks", f"{ranks}: {explain(degrees, Mode(parallel.mode))}", {"ranks": ranks, **degrees})


def roles(settings: RuntimeSettings) -> Iterator[Finding]:
    """Who verifies and who drafts, where ranks with a draft model share steps."""
    found = of_ranks(settings.parallel)
    ranks, is_dp = found.value["ranks"], Mode(settings.parallel.mode) is Mode.dp
    if not settings.draft.is_there or found.is_broken or is_dp or ranks == 1:
        return
    if found.value != {"ranks": ranks, "lp": ranks}:
        text = "all ranks make the same drafts before a step, as not every rank holds the whole model"
        yield Finding(SECTION, "drafts", text, {"drafting": 0})
        return
    text = (
        f"where it pays by step times, one rank verifies and {ranks - 1} draft{'s' * (ranks == 2)} ahead, each for "
        "other ends of the step; else all verify. The trace of a step says who did what, and what came true"
    )
    yield Finding(SECTION, "drafts", text, {"drafting": ranks - 1})


class Reasons(logging.Handler):
    """Keeps the last warning."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.last = ""

    def emit(self, record: logging.LogRecord) -> None:
        self.last = record.getMessage()


def _why_device(wanted: str, device: torch.device) -> str:
    if wanted != "auto":
        return ", as model.device says"
    return ": there is a GPU" if device.type == "cuda" else ": no GPU can be used"


def _why_dtype(wanted: str, model: CausalModel) -> str:
    if wanted != AUTO:
        return ", as model.dtype says"
    if model.device.type == "cuda":
        return ": the checkpoint's own, on a GPU; text is that of generate up to rounding"
    return ": on a CPU, where tokens are then exactly those of transformers' generate"


def _dtype_advice(settings: RuntimeSettings, model: CausalModel) -> str:
    if model.device.type == "cuda" or settings.model.dtype != AUTO or model.has_quantized_weights:
        return ""
    return "model.dtype=bfloat16 halves the memory that a step reads; text may then differ from generate by rounding"
