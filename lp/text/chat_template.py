"""Turns a conversation into the tokens that a checkpoint's chat template makes of it.

The template is a program that comes with the checkpoint; transformers runs it in a sandbox. Knows nothing of models.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from jinja2 import TemplateError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

# What a rendering says in its own way, or a client has no say in: the parameters of transformers' apply_chat_template.
_PARAMETERS = frozenset((
    "conversation", "tools", "chat_template", "add_generation_prompt", "continue_final_message", "tokenize",
    "sanitize_control_tokens", "padding", "truncation", "max_length", "return_tensors", "return_dict",
    "return_assistant_tokens_mask", "tokenizer_kwargs",
))  # fmt: skip
# A message of a conversation: {"role": "user", "content": "..."}. Which roles there are is up to the template.
Message = Mapping[str, Any]
# What a message may have as well: calls of tools and what they return, and the assistant's reasoning.
_EXTRAS = ("tool_calls", "tool_call_id", "name", "reasoning_content")


@dataclass(frozen=True)
class Rendering:
    """How a conversation is written.

    add_generation_prompt: whether the beginning of the assistant's answer comes last. continue_final_message: whether
    the last message is left open, so that its text goes on. add_special_tokens: whether the tokenizer adds its own to
    what the template writes. variables: further variables of the template, such as enable_thinking. tools: those that
    the assistant may call, as in OpenAI's API.
    """

    add_generation_prompt: bool = True
    continue_final_message: bool = False
    add_special_tokens: bool = False
    variables: Mapping[str, Any] = field(default_factory=dict)
    tools: Sequence[dict[str, Any]] = ()

    def check(self) -> None:
        """Raises ValueError for settings that cannot be used."""
        if self.add_generation_prompt and self.continue_final_message:
            raise ValueError(
                "continue_final_message cannot be combined with add_generation_prompt; set add_generation_prompt=false"
            )
        if taken := sorted(_PARAMETERS & self.variables.keys()):
            raise ValueError(f"chat_template_kwargs holds {', '.join(taken)}, which is no variable of a template")


class NoChatTemplate(ValueError):
    """The checkpoint has no chat template, so it cannot read messages."""

    def __init__(self) -> None:
        super().__init__(
            "the checkpoint has no chat template, so it cannot read messages: give it a text to continue, or use an "
            "instruction-tuned checkpoint"
        )


def check_template(tokenizer: PreTrainedTokenizerFast) -> None:
    """Raises NoChatTemplate if the tokenizer has none."""
    if not tokenizer.chat_template:
        raise NoChatTemplate


def encode(
    tokenizer: PreTrainedTokenizerFast, messages: Sequence[Any], rendering: Rendering | None = None
) -> list[int]:
    """The token ids of a conversation; without a rendering, up to where the assistant's answer begins.

    Raises ValueError for messages of another form, for those that the template refuses and for a rendering that cannot
    be used, NoChatTemplate if there is no template.
    """
    rendering = rendering or Rendering()
    rendering.check()
    plain = [check_message(message, number) for number, message in enumerate(messages)]
    check_template(tokenizer)
    try:
        text = tokenizer.apply_chat_template(
            plain,
            tools=[*rendering.tools] or None,
            tokenize=False,
            add_generation_prompt=rendering.add_generation_prompt,
            continue_final_message=rendering.continue_final_message,
            **rendering.variables,
        )
    except TemplateError as error:
        raise ValueError(f"the model's chat template refuses these messages: {_one_line(error)}") from error
    except Exception as error:  # a template is a program of the checkpoint's author and may raise anything
        reason = f"{type(error).__name__}: {_one_line(error)}"
        raise ValueError(f"the model's chat template fails on these messages ({reason})") from error
    return tokenizer.encode(str(text), add_special_tokens=rendering.add_special_tokens)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


def check_message(message: Any, number: int) -> dict[str, Any]:
    """The message itself. number: its place in the conversation. Raises ValueError if it has another form."""
    if not isinstance(message, Mapping):
        raise ValueError(f'messages[{number}] must be an object like {{"role": "user", "content": "..."}}')
    for key in ("role", "content"):
        if not isinstance(message.get(key), str):
            raise ValueError(f"messages[{number}] must have a text under {key!r}, not {message.get(key)!r}")
    if others := sorted(map(str, message.keys() - {"role", "content", *_EXTRAS})):
        raise ValueError(f"messages[{number}] has {', '.join(others)}, which no message has")
    for key in ("role", "content"):
        _check_unicode(message[key], number)
    extras = {key: message[key] for key in _EXTRAS if message.get(key) is not None}
    if extras:
        _check_unicode(json.dumps(extras, ensure_ascii=False), number)
    return {"role": message["role"], "content": message["content"], **extras}


def _check_unicode(text: str, number: int) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"messages[{number}] is not valid Unicode: character {error.start} is a lone surrogate"
        ) from None
