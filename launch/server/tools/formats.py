"""The formats in which models write reasoning and tool calls, and how to tell a model's from its chat template.

A format that encloses calls in markers is a response template of transformers, either the one that comes with the
tokenizer or one of those below.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any, Literal

# Where an answer begins: at the end of the prompt, or before the mark with which the prompt begins the reasoning.
BEGINNING = r"(?=<think>\s*\Z)|(?<!<think>\s*)\Z"
REASONING = {"open_pattern": r"\s*<think>\s*", "close_pattern": r"\s*</think>\s*", "content_args": {"strip": False}}
CONTENT = {"content_args": {"strip": False}}

# By family, the field tool_calls of its response template. The call itself is JSON text, unless a field says otherwise.
CALLS: dict[str, dict[str, Any]] = {
    # Qwen 2.5 and 3, Hermes, SmolLM3 and many others: <tool_call>{"name": ..., "arguments": {...}}</tool_call>
    "hermes": {"open_pattern": r"\s*<tool_call>\s*", "close_pattern": r"\s*</tool_call>\s*"},
    # Mistral: [TOOL_CALLS][{"name": ..., "arguments": {...}}], and later [TOOL_CALLS]NAME[ARGS]{...}
    "mistral": {"open_pattern": r"\s*\[TOOL_CALLS\]\s*"},
    # Qwen 3 Coder and 3.5: <tool_call><function=NAME><parameter=KEY>VALUE</parameter></function></tool_call>
    "tags": {
        "open_pattern": r"\s*(?:<tool_call>\s*)?<function=(?P<name>[^>\n]+)>",
        "close": "</function>",
        "repeats": True,
        "content": "xml-inline",
        "content_args": {"tag_pattern": r"<parameter=(?P<key>[^>\n]+)>\n?(?P<value>.*?)\n?</parameter>"},
        "transform": {"type": "function", "function": {"name": "{name}", "arguments": "{content}"}},
    },
    # Gemma 4: <|tool_call>call:NAME{key:<|"|>value<|"|>}<tool_call|>
    "gemma": {
        "open_pattern": r"<\|tool_call>call:(?P<name>\w+)",
        "close": "<tool_call|>",
        "repeats": True,
        "content": "json",
        "content_args": {"unquoted_keys": True, "string_delims": [['<|"|>', '<|"|>']]},
        "transform": {"type": "function", "function": {"name": "{name}", "arguments": "{content}"}},
    },
}
# By family, marks that are left over after a call, and are no content.
AFTER_CALLS = {"tags": {"close_pattern": r"\s*</tool_call>\s*"}}
# By family, what a chat template that writes its calls contains. The first that fits is taken.
SIGNS = {
    "gemma": ("<|tool_call>",),
    "tags": ("<function=", "<parameter="),
    "mistral": ("[TOOL_CALLS]",),
    "hermes": ("<tool_call>",),
}


@dataclass(frozen=True)
class Format:
    """How a model writes reasoning and calls.

    calls: "marked" has the response template's markers, "bare" is a JSON object that is the whole answer, as Llama 3
    writes it, and "none" no calls. template: a response template; None if nothing is marked.
    """

    calls: Literal["marked", "bare", "none"]
    template: dict[str, Any] | None

    @property
    def has_something(self) -> bool:
        return self.calls != "none" or self.template is not None


def find_format(chat_template: str, response_template: dict[str, Any] | None, with_tools: bool) -> Format:
    """The format of a model's answers.

    chat_template: the source of the chat template that wrote the prompt. response_template: the tokenizer's own; None
    if it has none. with_tools: the model was told of tools.
    """
    if response_template is not None:
        template = copy.deepcopy(response_template)
        has_calls = "tool_calls" in template.get("fields", {})
        if not with_tools:
            template.get("fields", {}).pop("tool_calls", None)
        return Format("marked" if with_tools and has_calls else "none", template)
    fields: dict[str, Any] = {"content": CONTENT}
    if "</think>" in chat_template:
        fields["reasoning_content"] = REASONING
    family = next((name for name, signs in SIGNS.items() if all(sign in chat_template for sign in signs)), None)
    if with_tools and family:
        fields["tool_calls"] = CALLS[family]
        fields["content"] = CONTENT | AFTER_CALLS.get(family, {})
    template = {"start_anchor_pattern": BEGINNING, "fields": fields} if len(fields) > 1 else None
    if not with_tools:
        return Format("none", template)
    return Format("marked" if family else "bare", template)


def generic_format() -> Format:
    """The format that models are asked for whose chat template knows no tools."""
    return find_format("<tool_call>", None, with_tools=True)
