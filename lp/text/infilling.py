"""Prompts for text between two texts (fill in the middle), by the special tokens that a tokenizer has for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


class Marks(NamedTuple):
    """The tokens before the text's beginning, before its end, and after both; empty if there is none.

    end_first: whether the end comes before the beginning.
    """

    before: str
    between: str
    after: str
    end_first: bool = False


KNOWN = (
    Marks("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),  # Qwen Coder, CodeGemma
    Marks("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),  # StarCoder, Granite
    Marks("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),  # SantaCoder
    Marks("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),  # DeepSeek Coder
    Marks("▁<PRE>", "▁<SUF>", "▁<MID>"),  # Code Llama
    Marks("[PREFIX]", "[SUFFIX]", "", end_first=True),  # Codestral
)


def infill(tokenizer: PreTrainedTokenizerFast, beginning: list[int], end: str, special: bool = True) -> list[int]:
    """The prompt after which the text between a beginning and an end comes.

    beginning: its tokens, without special ones. special: whether the prompt begins with the tokenizer's own special
    token, if it has one. Raises ValueError for a tokenizer that has no tokens for this.
    """
    id_of = tokenizer.backend_tokenizer.token_to_id  # the whole vocabulary would take a second to copy
    marks = next((marks for marks in KNOWN if all(id_of(token) is not None for token in marks[:3] if token)), None)
    if marks is None:
        raise ValueError(
            "this model's tokenizer has no tokens for text between two texts, such as <|fim_prefix|>; use a model that "
            "was trained to fill in the middle"
        )
    before, between, after = ([id_of(token)] if token else [] for token in marks[:3])
    own_end: list[int] = tokenizer.encode(end, add_special_tokens=False)  # pyright: ignore[reportAssignmentType]
    parts = [between, own_end, before, beginning] if marks.end_first else [before, beginning, between, own_end, after]
    bos = tokenizer.bos_token_id
    head: list[int] = [bos] if special and bos is not None and tokenizer.encode("a")[:1] == [bos] else []  # pyright: ignore[reportAssignmentType]
    return [token for part in (head, *parts) for token in part]
