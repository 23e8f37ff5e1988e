"""How one model writes reasoning and tool calls: what its chat template is given, and how its answers are read.

A format that encloses calls in markers is a response template of transformers, either the one that comes with the
tokenizer or one of those below.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal

from jinja2 import meta
from jinja2.exceptions import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from launch.server.answer import Piece, merge
from launch.server.answer_parsers import (
    PYTHON_TAG,
    ArgumentsParser,
    BareParser,
    CallText,
    FirstCallOnly,
    MarkedParser,
    Parser,
    TextParser,
)

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

    from lp.grammar.settings import Grammar

Tool = dict[str, Any]


@dataclass(frozen=True)
class ToolChoice:
    """Whether a model may, must or must not call tools. name: the one function to call, if the mode is `named`."""

    mode: Literal["none", "auto", "required", "named"] = "none"
    name: str = ""

    @property
    def is_forced(self) -> bool:
        """Whether the answer is bound to be a call."""
        return self.mode in ("required", "named")


def schema_of_calls(tools: Sequence[Tool], choice: ToolChoice, allows_parallel: bool) -> dict[str, Any] | None:
    """The JSON Schema that an answer must follow; None for a choice that binds it to nothing.

    A named function's answer is its arguments. If a call is required, it is an array of calls, as in vLLM.
    """
    if not choice.is_forced:
        return None
    if choice.mode == "named":
        return _parameters(next(tool for tool in tools if tool["function"]["name"] == choice.name))
    schema: dict[str, Any] = {
        "type": "array",
        "minItems": 1,
        "items": {"anyOf": [_call(tool, number) for number, tool in enumerate(tools)]},
        "$defs": {str(number): _move(_parameters(tool), number) for number, tool in enumerate(tools)},
    }
    return schema if allows_parallel else {**schema, "maxItems": 1}


def forced_parser(choice: ToolChoice) -> Parser:
    """The parser of an answer that follows `schema_of_calls`."""
    return CallText() if choice.mode == "required" else ArgumentsParser(choice.name)


def _call(tool: Tool, number: int) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {
            "name": {"type": "string", "const": tool["function"]["name"]},
            "arguments": {"$ref": f"#/$defs/{number}"},
        },
        "required": ["name", "arguments"],
        "additionalProperties": False,
    }


def _parameters(tool: Tool) -> dict[str, Any]:
    return tool["function"].get("parameters") or {"type": "object", "properties": {}, "additionalProperties": False}


def _move(schema: Any, number: int) -> Any:
    """A schema whose references to itself are right when it lies under $defs of another one."""
    if isinstance(schema, list):
        return [_move(value, number) for value in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: f"#/$defs/{number}{value[1:]}"
        if key == "$ref" and isinstance(value, str) and value.startswith("#")
        else _move(value, number)
        for key, value in schema.items()
    }


class Reader:
    """Reads one answer."""

    def __init__(self, parser: Parser, dropped: re.Pattern[str] | None = None):
        """dropped: special tokens that are part of the text and of no piece. A token comes in one part."""
        self._parser = parser
        self._dropped = dropped

    def read(self, text: str, is_last: bool) -> list[Piece]:
        """Adds text; returns what is now known. is_last: the answer is over."""
        if self._dropped is not None:
            text = self._dropped.sub("", text)
        pieces = self._parser.feed(text)
        return merge([*pieces, *self._parser.finish()] if is_last else pieces)


@dataclass(frozen=True)
class Reading:
    """How the answers to one request are read.

    tools: those that the prompt names. choice: what the model may call. prompt_end: the end of the
    prompt's text. kept: special tokens that mean something to the parser; the text must have them. others: special
    tokens that the text then has as well, and that are dropped.
    """

    form: Format
    tools: list[dict[str, Any]] = field(default_factory=list)
    choice: ToolChoice = field(default_factory=ToolChoice)
    allows_parallel: bool = True
    prompt_end: str = ""
    kept: frozenset[str] = frozenset()
    others: frozenset[str] = frozenset()

    def begin(self) -> Reader:
        """The reader of one answer."""
        if self.choice.is_forced:
            return Reader(forced_parser(self.choice))
        parser = make_parser(self.form, self.tools, self.prompt_end)
        dropped = None
        if self.kept and self.others:
            dropped = re.compile("|".join(map(re.escape, sorted(self.others, key=len, reverse=True))))
        return Reader(parser if self.allows_parallel else FirstCallOnly(parser), dropped)


# Tokens at the end of the prompt in which the beginning of the answer is looked for.
_END_TOKENS = 256

Messages = Sequence[Mapping[str, Any]]
Tools = Sequence[dict[str, Any]]


def make_parser(form: Format, tools: Sequence[dict[str, Any]], prompt: str) -> Parser:
    """The parser of an answer that the model writes freely.

    tools: the functions that the prompt names, as in OpenAI's API. prompt: the end of the text that the model
    continues, since a chat template may begin the answer's reasoning itself.
    """
    bare = BareParser({tool["function"]["name"] for tool in tools}) if form.calls == "bare" else None
    if form.template is None:
        return bare or TextParser()
    return MarkedParser(form.template, tools, prompt, content=bare or TextParser())


class Dialect:
    """What the tokenizer of a model and its chat template say of tools and reasoning."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast):
        self._tokenizer = tokenizer
        self._specials = frozenset(str(token) for token in tokenizer.added_tokens_decoder.values() if token.special)
        self._knows_tools = lru_cache(4)(knows_tools)

    def write(self, messages: Messages, tools: Tools) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """The messages and tools for the chat template. One that knows no tools gets them as text in the messages."""
        if self._template_knows(tools):
            return [_for_template(message) for message in messages], [_complete(tool) for tool in tools]
        if tools or any(message.get("tool_calls") or message["role"] == "tool" for message in messages):
            return with_tools([_for_template(message) for message in messages], tools), []
        return [dict(message) for message in messages], []

    def reading(
        self,
        tools: Tools,
        choice: ToolChoice,
        allows_parallel: bool,
        prompt: Sequence[int],
        grammar: Grammar | None = None,
    ) -> Reading:
        """How the answers to a prompt are read.

        tools: those that the prompt names. prompt: its tokens. grammar: what the answers must be. If it has no
        place for the marks of the model's format, the answers are content alone.
        """
        form = self._format(tools)
        if not form.has_something and not choice.is_forced:
            return Reading(form)
        end = str(self._tokenizer.decode(list(prompt[-_END_TOKENS:]), skip_special_tokens=False))
        if grammar is not None and not choice.is_forced and _is_plain(grammar, end):
            return Reading(Format("none", None))
        marks = _marks(form)
        kept = frozenset(token for token in self._specials if token in marks)
        return Reading(form, list(tools), choice, allows_parallel, end, kept, self._specials - kept)

    def _format(self, tools: Tools) -> Format:
        if tools and not self._template_knows(tools):
            return generic_format()
        response_template = getattr(self._tokenizer, "response_template", None)
        return find_format(self._template(tools), response_template, bool(tools))

    def _template_knows(self, tools: Tools) -> bool:
        return self._knows_tools(self._template(tools))

    def _template(self, tools: Tools) -> str:
        """The source of the chat template; some tokenizers have one of its own for tools. Empty if there is none."""
        if not self._tokenizer.chat_template:
            return ""
        return self._tokenizer.get_chat_template(tools=list(tools) or None)


def _for_template(message: Mapping[str, Any]) -> dict[str, Any]:
    """A message whose calls have their arguments as values, as chat templates want them."""
    if not message.get("tool_calls"):
        return dict(message)
    calls = [
        {**call, "function": {**call["function"], "arguments": _value(call["function"]["arguments"])}}
        for call in message["tool_calls"]
    ]
    return {**message, "tool_calls": calls}


def _value(arguments: Any) -> Any:
    """The value of JSON text; what is no JSON, as in a call that was cut short, stays a text."""
    try:
        return json.loads(arguments) if isinstance(arguments, str) else arguments
    except ValueError:
        return arguments


def _complete(tool: dict[str, Any]) -> dict[str, Any]:
    """A tool with the keys that chat templates read without asking."""
    usual = {"description": "", "parameters": {"type": "object", "properties": {}}}
    return {**tool, "function": {**usual, **tool["function"]}}


def _is_plain(grammar: Grammar, prompt_end: str) -> bool:
    """Whether a grammar's texts are read without marks: JSON, and those for which the prompt has begun reasoning that
    the grammar does not end.
    """
    is_json = grammar.kind in ("json_object", "json_schema")
    return is_json or (prompt_end.rstrip().endswith("<think>") and "</think>" not in grammar.text)


def _marks(form: Format) -> str:
    """All marks of a format, as one text."""
    fields = (form.template or {}).get("fields", {})
    keys = ("open", "close", "open_pattern", "close_pattern")
    marks = json.dumps([[field.get(key) for key in keys] for field in fields.values()], ensure_ascii=False)
    unescaped = re.sub(r"\\+(.)", r"\1", marks)
    return unescaped + (PYTHON_TAG if form.calls == "bare" else "")


_INSTRUCTIONS = """You can call functions to help with what the user asks for. These are their signatures:
<tools>
{tools}
</tools>
To call one, answer with its name and arguments as a JSON object between <tool_call> and </tool_call>:
<tool_call>
{{"name": "the function's name", "arguments": {{"the parameter's name": "its value"}}}}
</tool_call>
The result of a call comes between <tool_response> and </tool_response>. If no function helps, answer without a call."""


def knows_tools(chat_template: str) -> bool:
    """Whether a chat template writes the tools that it is given."""
    environment = ImmutableSandboxedEnvironment(extensions=["jinja2.ext.loopcontrols", "jinja2.ext.do"])
    try:
        return "tools" in meta.find_undeclared_variables(environment.parse(chat_template))
    except TemplateError:  # an extension of transformers, or a fault that shows when the template is used
        return "tools" in chat_template


def with_tools(messages: Sequence[Mapping[str, Any]], tools: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The conversation as messages of text alone, the system message of which describes the tools."""
    plain = [_plain(message) for message in messages]
    if not tools:
        return plain
    lines = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
    instructions = _INSTRUCTIONS.format(tools=lines)
    if plain and plain[0]["role"] in ("system", "developer"):
        first = {**plain[0], "content": f"{plain[0]['content']}\n\n{instructions}"}
        return [first, *plain[1:]]
    return [{"role": "system", "content": instructions}, *plain]


def _plain(message: Mapping[str, Any]) -> dict[str, Any]:
    content = message.get("content") or ""
    if message["role"] == "tool":
        return {"role": "user", "content": f"<tool_response>\n{content}\n</tool_response>"}
    calls = "".join(f"\n<tool_call>\n{_call_text(call)}\n</tool_call>" for call in message.get("tool_calls") or ())
    return {"role": message["role"], "content": (content + calls).strip("\n") if calls else content}


def _call_text(call: Mapping[str, Any]) -> str:
    function = call["function"]
    return json.dumps({"name": function["name"], "arguments": function["arguments"]}, ensure_ascii=False)


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
    if it has none. with_tools: the prompt names tools.
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
