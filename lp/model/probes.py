"""Short token sequences on which a model's logits are compared when it is loaded.

They are ordinary text, since on control tokens a trained model's logits can be mostly rounding errors.
"""

from __future__ import annotations

from transformers import PreTrainedTokenizerFast

# An odd number of texts: the median of their errors counts. A model in float32 is checked with the first three.
TEXTS = (
    "The train was late again, so we walked along the river and talked about the summer.",
    "def mean(values):\n    return sum(values) / len(values) if values else 0.0\n",
    "Water boils at a lower temperature in the mountains, because the air is thinner there.",
    "She opened the old wooden box, took out seven letters and read them one after another.",
    "Please write down the names of three large cities and the number of people in each.",
)
# Of the vocabulary, this share at each end is left out where no tokenizer is at hand: control tokens and unused ids.
MARGIN = 1 / 8
NUM_SPREAD = 12
_GOLDEN = (5**0.5 - 1) / 2

Probes = list[list[int]]


def text_probes(tokenizer: PreTrainedTokenizerFast) -> Probes:
    """The texts as tokens, without special tokens. Empty if the tokenizer turns some text into less than two tokens."""
    probes = [tokenizer.encode(text, add_special_tokens=False) for text in TEXTS]
    return probes if min(map(len, probes)) > 1 else []


def spread_probes(vocab_size: int) -> Probes:
    """Made-up texts of ordinary token ids, spread over the vocabulary but for its ends."""
    first = int(MARGIN * vocab_size)
    span = max(vocab_size - 2 * first, 1)
    return [
        [first + int(span * (_GOLDEN * (number * NUM_SPREAD + place + 1) % 1)) for place in range(NUM_SPREAD)]
        for number in range(len(TEXTS))
    ]
