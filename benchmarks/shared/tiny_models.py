"""What tiny models with random weights have in common: their tokenizer, and weights that give varied text."""

from __future__ import annotations

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

VOCAB_SIZE = 300

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
