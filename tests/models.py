"""Tiny models with random weights, saved as real checkpoint folders: safetensors, config.json, tokenizer.json.

Their weights are spread widely: greedy text is varied, and the best token is clearly ahead of the second, so that tests
can compare tokens in spite of rounding.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerFast

VOCAB_SIZE = 300
CONTEXT = 640
BOS, EOS = 0, 1
SLIDING_WINDOW = 24

SIZES: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": CONTEXT,
    "bos_token_id": BOS,
    "eos_token_id": EOS,
    "pad_token_id": EOS,
    "tie_word_embeddings": False,
}
HEAD_DIM: dict[str, Any] = {"head_dim": 8}
ALTERNATING: dict[str, Any] = {
    **HEAD_DIM,
    "num_hidden_layers": 4,
    "sliding_window": SLIDING_WINDOW,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
}
EXPERTS: dict[str, Any] = {"num_experts_per_tok": 2}

# The settings that each tiny model has beyond `SIZES`.
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama", "num_hidden_layers": 3},
    "mistral": {"model_type": "mistral", "sliding_window": SLIDING_WINDOW},
    "qwen2": {"model_type": "qwen2"},
    "qwen3": {"model_type": "qwen3", **HEAD_DIM},
    "gemma2": {
        "model_type": "gemma2",
        **ALTERNATING,
        "query_pre_attn_scalar": 8,
        "attn_logit_softcapping": 5.0,
        "final_logit_softcapping": 20.0,
    },
    "gemma3": {"model_type": "gemma3_text", **ALTERNATING, "query_pre_attn_scalar": 8},
    "phi3": {"model_type": "phi3"},
    "gpt2": {"model_type": "gpt2", "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": CONTEXT},
    "gpt_neox": {"model_type": "gpt_neox"},
    "olmo2": {"model_type": "olmo2"},
    "mixtral": {"model_type": "mixtral", **EXPERTS, "num_local_experts": 4},
    "qwen3_moe": {
        "model_type": "qwen3_moe",
        **EXPERTS,
        **HEAD_DIM,
        "num_experts": 4,
        "moe_intermediate_size": 32,
        "decoder_sparse_step": 1,
    },
    "gpt_oss": {
        "model_type": "gpt_oss",
        **ALTERNATING,
        **EXPERTS,
        "num_local_experts": 4,
        "intermediate_size": 32,
    },
    "starcoder2": {"model_type": "starcoder2", "sliding_window": SLIDING_WINDOW},
    "granite": {"model_type": "granite"},
    "cohere": {"model_type": "cohere", "logit_scale": 1.0},
}

# The text on which the tokenizer is trained.
TEXT = (
    "def add(first, second):\n    return first + second\n\n\nclass Point:\n    def __init__(self, x, y):\n"
    "        self.x = x\n        self.y = y\n\n    def move(self, by):\n"
    "        return Point(self.x + by, self.y + by)\n"
)


def build_tokenizer(vocab_size: int = VOCAB_SIZE, chat_template: str | None = None) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer, which can encode every text."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=["<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([TEXT], trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", chat_template=chat_template
    )


def spread_weights(model: torch.nn.Module, seed: int) -> None:
    """Sets random weights that keep the scale of activations and give sharp attention and logits a few units apart."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.dim() < 2:
                parameter.add_(0.1 * noise)
            elif "embed" in name or "wte" in name or "wpe" in name:
                parameter.copy_(noise)
            else:
                parameter.copy_(1.6 * noise / parameter.shape[-1] ** 0.5)


def save_checkpoint(
    folder: Path, architecture: str = "llama", seed: int = 0, chat_template: str | None = None, **changes: Any
) -> Path:
    """Writes a tiny model and returns its folder; `changes` go into the model's configuration."""
    values = {**SIZES, **ARCHITECTURES.get(architecture, {"model_type": architecture}), **changes}
    config = AutoConfig.for_model(**values)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager")
    spread_weights(model, seed)
    model.save_pretrained(folder)
    build_tokenizer(min(VOCAB_SIZE, values["vocab_size"]), chat_template).save_pretrained(folder)
    return folder


def load_reference(folder: Path) -> PreTrainedModel:
    """The model as transformers runs it, with transformers' eager attention."""
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()


def generate_greedily(
    model: PreTrainedModel, prompt: list[int], num_tokens: int, eos: list[int] | None = None, **settings: Any
) -> list[int]:
    """The new tokens that transformers' `generate` gives; without `eos` it never stops early."""
    model.generation_config.eos_token_id = eos
    inputs = torch.tensor([prompt])
    output = model.generate(
        inputs, attention_mask=torch.ones_like(inputs), max_new_tokens=num_tokens, do_sample=False, **settings
    )
    return output[0, len(prompt) :].tolist()
