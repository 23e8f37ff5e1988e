"""Tiny models as GGUF files, with the byte-level tokenizer of the other tiny models."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFWriter, RopeScalingType, TokenType, quantize
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from safetensors.numpy import load_file
from transformers import AutoConfig, AutoTokenizer

from benchmarks.shared.random_gguf import add_sizes
from tests.models import save_checkpoint

# Where the scales of a block lie, and what they are as a share of the deviation of its numbers.
SCALES = {
    GGMLQuantizationType.Q4_K: {0: 1 / 150, 2: 1 / 20},
    GGMLQuantizationType.Q5_K: {0: 1 / 300, 2: 1 / 20},
    GGMLQuantizationType.Q6_K: {208: 1 / 1500},
    GGMLQuantizationType.IQ4_NL: {0: 1 / 60},
}
PARTS = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "self_attn.sinks": "attn_sinks",
    "mlp.router": "ffn_gate_inp",
    "mlp.gate": "ffn_gate_inp",
    "mlp.experts.gate_proj": "ffn_gate_exps",
    "mlp.experts.up_proj": "ffn_up_exps",
    "mlp.experts.down_proj": "ffn_down_exps",
    "mlp.shared_expert.gate_proj": "ffn_gate_shexp",
    "mlp.shared_expert.up_proj": "ffn_up_shexp",
    "mlp.shared_expert.down_proj": "ffn_down_shexp",
    "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
    "embed_tokens": "token_embd",
    "lm_head": "output",
    "norm": "output_norm",
}

# Names that an architecture has instead.
OTHER_PARTS = {"gpt-oss": {"post_attention_layernorm": "post_attention_norm"}}
# The models of architectures, where they are not Llamas.
MODELS = {"qwen2moe": "qwen2_moe", "qwen3moe": "qwen3_moe", "gpt-oss": "gpt_oss"}


def write_gguf(
    file: Path,
    seed: int = 0,
    architecture: str = "llama",
    tokenizer: str = "gpt2",
    without: str = "none",
    kinds: Sequence[str] = ("F32",),
    **changes: Any,
) -> Path:
    """Writes a tiny model and returns its file.

    architecture, tokenizer: the kinds that the file names. without: a tensor that is left out. kinds: the types of
    blocks that matrices get in turns. changes: of the model's configuration.
    """
    folder = save_checkpoint(
        file.parent / f"{file.stem}-checkpoint", MODELS.get(architecture, "llama"), seed,
        chat_template="{{ messages }}", **changes,
    )  # fmt: skip
    config = AutoConfig.from_pretrained(folder)
    writer = GGUFWriter(file, architecture)
    writer.add_name("tiny")
    add_sizes(writer, config)
    if architecture in MODELS:
        writer.add_expert_count(config.num_experts)
        writer.add_expert_used_count(config.num_experts_per_tok)
    if architecture in ("qwen3moe", "gpt-oss"):
        writer.add_key_length(config.head_dim)
    if architecture == "gpt-oss":
        writer.add_expert_feed_forward_length(config.intermediate_size)
        writer.add_sliding_window(config.sliding_window)
        writer.add_rope_scaling_type(RopeScalingType.YARN)
        writer.add_rope_scaling_factor(config.rope_parameters["factor"])
        writer.add_rope_scaling_orig_ctx_len(config.rope_parameters["original_max_position_embeddings"])
    _add_tokenizer(writer, folder, config, tokenizer)
    turns, kind = cycle(kinds), GGMLQuantizationType.F32
    parts = PARTS | OTHER_PARTS.get(architecture, {})
    for name, tensor in _merged(_apart(load_file(folder / "model.safetensors"))).items():
        if (written := _name(name, parts)) == without:
            continue
        if tensor.ndim == 1 or "ffn_gate_inp" in written or written.endswith("bias"):
            kind = GGMLQuantizationType.F32
        elif "ffn_up_exps" not in written:  # which has the type of ffn_gate_exps
            kind = GGMLQuantizationType[next(turns)]
        tensor = tensor[0] if "ffn_gate_inp_shexp" in written else tensor
        made = blocks(tensor.reshape(-1, tensor.shape[-1]), kind) if tensor.ndim == 3 else blocks(tensor, kind)
        writer.add_tensor(written, made.reshape(*tensor.shape[:-1], -1), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def _apart(tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The same tensors, of which gpt-oss's are named and cut as other models'."""
    found: dict[str, np.ndarray] = {}
    for name, tensor in tensors.items():
        experts = re.fullmatch(r"(.*\.experts)\.(gate_up|down)_proj(_bias)?", name)
        if name.endswith(".sinks"):
            found[f"{name}.weight"] = tensor
        elif experts is None:
            found[name] = tensor
        else:
            before, part, is_bias = experts.groups()
            names, kind = part.split("_"), "bias" if is_bias else "weight"
            by_output = tensor if is_bias else tensor.swapaxes(1, 2)
            for number, one in enumerate(names):
                found[f"{before}.{one}_proj.{kind}"] = np.ascontiguousarray(by_output[:, number :: len(names)])
    return found


def _merged(tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The same tensors, with one for all experts of a layer."""
    found: dict[str, np.ndarray] = {}
    by_name: dict[str, dict[int, np.ndarray]] = {}
    for name, tensor in tensors.items():
        if found_number := re.fullmatch(r"(.*\.experts)\.(\d+)\.(\w+_proj.*)", name):
            before, number, part = found_number.groups()
            by_name.setdefault(f"{before}.{part}", {})[int(number)] = tensor
        else:
            found[name] = tensor
    return found | {name: np.stack([own[number] for number in sorted(own)]) for name, own in by_name.items()}


def blocks(numbers: np.ndarray, kind: GGMLQuantizationType) -> np.ndarray:
    """Blocks of a type, whose numbers are like those that are given; any, where the package gguf makes none."""
    try:
        return quantize(numbers, kind)
    except NotImplementedError:
        size, num_bytes = GGML_QUANT_SIZES[kind]
        rng = np.random.default_rng(numbers.size)
        made = rng.integers(0, 256, (len(numbers), numbers.shape[1] // size, num_bytes), dtype=np.uint8)
        deviation = float(numbers.std())
        for at, share in SCALES[kind].items():
            scales = deviation * share * rng.uniform(0.5, 1.5, made.shape[:2])
            made[..., at : at + 2] = scales.astype(np.float16)[..., None].view(np.uint8)
        return made.reshape(len(numbers), -1)


def _add_tokenizer(writer: GGUFWriter, folder: Path, config: Any, kind: str) -> None:
    tokens = AutoTokenizer.from_pretrained(folder).convert_ids_to_tokens(range(config.vocab_size))
    merges = json.loads((folder / "tokenizer.json").read_text())["model"]["merges"]
    special = {config.bos_token_id, config.eos_token_id}
    writer.add_tokenizer_model(kind)
    writer.add_token_list(tokens)
    writer.add_token_types([TokenType.CONTROL if n in special else TokenType.NORMAL for n in range(len(tokens))])
    writer.add_token_merges([" ".join(pair) for pair in merges])
    writer.add_bos_token_id(config.bos_token_id)
    writer.add_eos_token_id(config.eos_token_id)
    writer.add_add_bos_token(False)
    writer.add_chat_template("{{ messages }}")


def _name(name: str, parts: dict[str, str]) -> str:
    """The name in a GGUF file of a tensor that transformers calls `name`."""
    module, _, kind = name.removeprefix("model.").rpartition(".")
    if module.startswith("layers."):
        _, layer, part = module.split(".", 2)
        return f"blk.{layer}.{parts[part]}.{kind}"
    return f"{parts[module]}.{kind}"
