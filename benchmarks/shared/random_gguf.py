"""Writes GGUF files with random blocks, in the mix of types that llama.cpp calls Q4_K_M. Llamas alone.

Their text means nothing, but their step times do. The tokenizer is the demo model's, and other ids of the vocabulary
are tokens that no text has.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from gguf import GGUFWriter, TokenType
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from tqdm import tqdm
from transformers import LlamaConfig, PreTrainedConfig

from benchmarks.shared.random_weights import TOKENIZER

Q4_K, Q6_K, F32 = GGMLQuantizationType.Q4_K, GGMLQuantizationType.Q6_K, GGMLQuantizationType.F32
# Rows of a matrix whose blocks are made at a time.
ROWS_AT_ONCE = 4096


def write_gguf(file: Path, config: LlamaConfig, seed: int = 0) -> None:
    """Writes tensor by tensor, so that no more than one is in memory at a time. Raises OSError."""
    writer = GGUFWriter(file, "llama")
    writer.add_name("random")
    add_sizes(writer, config)
    _add_tokenizer(writer, config.vocab_size)
    kinds = tensor_kinds(config)
    for name, (shape, kind) in kinds.items():
        dtype = np.dtype(np.float32 if kind == F32 else np.uint8)
        num_bytes = _num_bytes(shape, kind)
        stored = shape if kind == F32 else (shape[0], num_bytes // shape[0])
        writer.add_tensor_info(name, stored, dtype, num_bytes, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    rng = np.random.default_rng(seed)
    for shape, kind in tqdm(kinds.values(), unit="tensor", desc="writing"):
        writer.write_tensor_data(np.ones(shape, np.float32) if kind == F32 else _random_blocks(rng, shape, kind))
    writer.close()


def tensor_kinds(config: LlamaConfig) -> dict[str, tuple[tuple[int, ...], GGMLQuantizationType]]:
    """The shape, outputs first, and the type of each tensor, by its name."""
    hidden, inner, num_layers = config.hidden_size, config.intermediate_size, config.num_hidden_layers
    head_dim = hidden // config.num_attention_heads
    of_values = config.num_key_value_heads * head_dim
    found: dict[str, tuple[tuple[int, ...], GGMLQuantizationType]] = {
        "token_embd.weight": ((config.vocab_size, hidden), Q4_K),
        "output_norm.weight": ((hidden,), F32),
        "output.weight": ((config.vocab_size, hidden), Q6_K),
    }
    for layer in range(num_layers):
        more = Q6_K if _has_more_bits(layer, num_layers) else Q4_K
        parts: dict[str, tuple[tuple[int, ...], GGMLQuantizationType]] = {
            "attn_norm": ((hidden,), F32),
            "attn_q": ((hidden, hidden), Q4_K),
            "attn_k": ((of_values, hidden), Q4_K),
            "attn_v": ((of_values, hidden), more),
            "attn_output": ((hidden, hidden), Q4_K),
            "ffn_norm": ((hidden,), F32),
            "ffn_gate": ((inner, hidden), Q4_K),
            "ffn_up": ((inner, hidden), Q4_K),
            "ffn_down": ((hidden, inner), more),
        }
        found |= {f"blk.{layer}.{name}.weight": part for name, part in parts.items()}
    return found


def _has_more_bits(layer: int, num_layers: int) -> bool:
    """The first and the last eighth of the layers, and every third of the others."""
    eighth = num_layers // 8
    return layer < eighth or layer >= 7 * num_layers // 8 or (layer - eighth) % 3 == 2


def _num_bytes(shape: tuple[int, ...], kind: GGMLQuantizationType) -> int:
    size, num_bytes = GGML_QUANT_SIZES[kind]
    return int(np.prod(shape)) // size * num_bytes


def _random_blocks(rng: np.random.Generator, shape: tuple[int, ...], kind: GGMLQuantizationType) -> np.ndarray:
    """uint8 [outputs, bytes of an output]: random codes and steps, whose numbers keep the scale of their inputs."""
    num_outputs, num_inputs = shape
    size, num_bytes = GGML_QUANT_SIZES[kind]
    made = np.frombuffer(rng.bytes(_num_bytes(shape, kind)), np.uint8).reshape(-1, num_bytes).copy()
    spread = num_inputs**-0.5
    if kind == Q4_K:  # equal steps of scales and minima, so that numbers are around 0: steps of 37, codes of 4.6
        made[:, 8:12] = made[:, 4:8]
        made[:, 12:16] = made[:, 12:16] & 15 | made[:, 12:16] << 4
        _write_half(made, 0, spread / (37 * 4.6))
        _write_half(made, 2, spread / (37 * 4.6) * 7.5)
    else:  # steps of 74, codes of 18.5
        _write_half(made, 208, spread / (74 * 18.5))
    return made.reshape(num_outputs, num_inputs // size * num_bytes)


def _write_half(blocks: np.ndarray, at: int, value: float) -> None:
    blocks[:, at : at + 2] = np.array([value], np.float16).view(np.uint8)


def add_sizes(writer: GGUFWriter, config: PreTrainedConfig) -> None:
    """Adds what a file says of a decoder's sizes."""
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_vocab_size(config.vocab_size)


def _add_tokenizer(writer: GGUFWriter, vocab_size: int) -> None:
    model = json.loads((TOKENIZER / "tokenizer.json").read_text(encoding="utf-8"))["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].__getitem__)
    assert len(tokens) <= vocab_size, "a vocabulary of its own would be needed"
    added = [f"<|unused_{number}|>" for number in range(vocab_size - len(tokens))]
    types = [TokenType.CONTROL] * 2 + [TokenType.NORMAL] * (len(tokens) - 2) + [TokenType.UNUSED] * len(added)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([*tokens, *added])
    writer.add_token_types(types)
    writer.add_token_merges([pair if isinstance(pair, str) else " ".join(pair) for pair in model["merges"]])
    writer.add_bos_token_id(tokens.index("<s>"))
    writer.add_eos_token_id(tokens.index("</s>"))
    writer.add_add_bos_token(False)
