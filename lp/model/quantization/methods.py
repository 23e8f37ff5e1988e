"""Which quantised checkpoints can be read, by what config.json says of them.

Which weights are quantised, and to how many bits, is not asked of it: the tensors themselves tell.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedConfig

from lp.model.errors import CheckpointError

GPTQ, AWQ, COMPRESSED, FP8, MXFP4 = "gptq", "awq", "compressed-tensors", "fp8", "mxfp4"
# Of compressed-tensors.
FORMATS = ("pack-quantized", "int-quantized", "float-quantized", "naive-quantized", "mxfp4-pack-quantized")
SUPPORTED = "gptq (4 or 8 bits), awq (4 bits), compressed-tensors (4 or 8 bits, FP8, MXFP4), fp8, mxfp4 and GGUF"


@dataclass(frozen=True)
class Method:
    """How a checkpoint's weights are quantised.

    name: as in config.json. zero_offset: what its files leave out of zero points. group_sizes: the numbers of inputs
    that may share a scale, -1 for all of them; empty means that the tensors tell. block: the outputs and inputs that
    share a scale, if scales are for blocks. has_activations: whether activations are meant to be quantised as well.
    """

    name: str
    zero_offset: int = 0
    group_sizes: frozenset[int] = frozenset()
    block: tuple[int, int] | None = None
    has_activations: bool = False


def find_method(config: PreTrainedConfig) -> Method | None:
    """How a checkpoint is quantised; None for one that is not. Raises CheckpointError for one that cannot be read."""
    given = getattr(config, "quantization_config", None)
    if given is None:
        given = getattr(config.get_text_config(decoder=True), "quantization_config", None)
    if given is None:
        return None
    settings: Mapping[str, Any] = given if isinstance(given, Mapping) else given.to_dict()
    name = settings.get("quant_method")
    name = str(getattr(name, "value", name or _unnamed(settings)))
    if name not in _READERS:
        raise _refusal(name)
    try:
        return _READERS[name](settings)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        if isinstance(error, CheckpointError):
            raise
        raise _refusal(
            f"{name}, but its quantization_config makes no sense ({type(error).__name__}: {error})"
        ) from error


def _unnamed(settings: Mapping[str, Any]) -> str:
    """The name of a method that does not say its own."""
    return "bitsandbytes" if settings.keys() & {"load_in_4bit", "load_in_8bit"} else "a method without a name"


def _refusal(what: str) -> CheckpointError:
    return CheckpointError(
        f"the checkpoint is quantised by {what}, which cannot be read; give one that is not quantised, or is by one of "
        f"{SUPPORTED}"
    )


def _gptq(settings: Mapping[str, Any]) -> Method:
    kind = settings.get("checkpoint_format") or settings.get("format") or GPTQ
    if kind not in (GPTQ, "gptq_v2"):
        raise _refusal(f"{GPTQ} in the format {kind}")
    _check_bits(GPTQ, settings["bits"])
    # Groups and bits may differ by module.
    own = [one for one in (settings.get("dynamic") or {}).values() if one]
    for one in own:
        _check_bits(GPTQ, one.get("bits", settings["bits"]))
    sizes = {int(one["group_size"]) for one in [settings, *own] if "group_size" in one}
    return Method(GPTQ, zero_offset=int(kind == GPTQ), group_sizes=frozenset(sizes))


def _awq(settings: Mapping[str, Any]) -> Method:
    kind = str(settings.get("version") or settings.get("checkpoint_format") or settings.get("format") or "gemm").lower()
    if kind != "gemm":
        raise _refusal(f"{AWQ} in the format {kind}")
    if (bits := settings["bits"]) != 4:
        raise _refusal(f"{AWQ} to {bits} bits")
    return Method(AWQ, group_sizes=frozenset({int(settings["group_size"])}))


def _compressed(settings: Mapping[str, Any]) -> Method:
    groups = list(settings["config_groups"].values())
    kinds = {one.get("format") or settings["format"] for one in groups}
    for kind in sorted(kinds - set(FORMATS)):
        raise _refusal(f"{COMPRESSED} in the format {kind}")
    if settings.get("transform_config"):
        raise _refusal(f"{COMPRESSED} with transforms of activations (transform_config)")
    if (settings.get("sparsity_config") or {}).get("format", "dense") != "dense":
        raise _refusal(f"{COMPRESSED} with sparse weights")
    weights = [one["weights"] for one in groups if one.get("weights")]
    for one in weights:
        if one.get("type", "int") == "int" or one["num_bits"] == 8:
            _check_bits(COMPRESSED, one["num_bits"])
        elif "mxfp4-pack-quantized" not in kinds:
            raise _refusal(f"{COMPRESSED} to floating-point numbers of {one['num_bits']} bits")
    blocks = {tuple(map(int, one["block_structure"])) for one in weights if one.get("block_structure")}
    if len(blocks) > 1:
        raise _refusal(f"{COMPRESSED} with blocks of several sizes")
    sizes = frozenset(int(one.get("group_size") or -1) for one in weights)
    activations = any(one.get("input_activations") for one in groups)
    return Method(COMPRESSED, 0, sizes, blocks.pop() if blocks else None, activations)  # type: ignore[arg-type]


def _fp8(settings: Mapping[str, Any]) -> Method:
    if (kind := settings.get("fmt") or "e4m3") != "e4m3":
        raise _refusal(f"{FP8} in the format {kind}")
    block = settings.get("weight_block_size")
    rows, columns = map(int, block or (1, 1))
    return Method(FP8, block=(rows, columns) if block else None, has_activations=True)


def _mxfp4(settings: Mapping[str, Any]) -> Method:
    return Method(MXFP4, group_sizes=frozenset({32}))


def _check_bits(name: str, bits: int) -> None:
    if bits not in (4, 8):
        raise _refusal(f"{name} to {bits} bits")


_READERS = {GPTQ: _gptq, AWQ: _awq, COMPRESSED: _compressed, FP8: _fp8, MXFP4: _mxfp4}
