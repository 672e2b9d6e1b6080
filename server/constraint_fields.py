"""The fields of a body that constrain what is generated, in llama-server's words, OpenAI's, and those that clients of
vLLM and SGLang send; and how they become a constraint that the model can keep to.

A request has one constraint. Whatever cannot be one is refused when the request arrives, with the engine's reason.
"""

import asyncio
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

from pydantic import BaseModel, ConfigDict

from model.bounded_regex import RegexError
from model.constraints.constraint import (
    Constraint,
    ConstraintCompiler,
    ConstraintError,
    ConstraintText,
    Syntax,
    is_lark,
)
from model.constraints.trigger_pattern import TriggerPattern
from model.constraints.triggers import Pattern, Triggers
from model.tokens.tokenizer import Tokenizer
from server.errors import FieldInvalid
from server.fields import Flag, JsonArray, JsonObject, Text, json_type
from server.shapes.fields import GrammarTrigger, JsonSchema, ResponseFormat, StructuredOutputs, documented

_COMPILE_LIMIT_S = 10.0
_MAX_CHOICES = 1000
_MAX_TRIGGERS = 32
_MAX_TRIGGER_LENGTH = 200
_MAX_PATTERN_LENGTH = 2000
_MAX_PRESERVED = 256
_ANY_OBJECT: Mapping[str, object] = {"type": "object"}
_TRIGGER_KINDS = ("token", "word", "pattern", "pattern_full")
"""By llama.cpp's numbers."""


@dataclass(frozen=True, slots=True)
class Source:
    """A field that constrains, and what it says."""

    field: str
    syntax: Syntax
    text: str


class ConstraintFields(BaseModel):
    """Fields of constraints; at most one says what may be generated."""

    model_config = ConfigDict(frozen=True, extra="ignore")
    grammar_goes_before_schema: ClassVar[bool] = True
    """Whether `json_schema` means nothing beside a `grammar`; else both at once are refused."""

    grammar: Text = ""
    json_schema: Annotated[object, documented(JsonSchema)] = None
    response_format: Annotated[object, documented(ResponseFormat)] = None
    grammar_lazy: Flag = False
    """The grammar holds from the first trigger on, and not before."""
    grammar_triggers: Annotated[JsonArray, documented(list[GrammarTrigger])] = []
    preserved_tokens: Annotated[JsonArray, documented(list[str | int])] = []
    """Control tokens that are text: a grammar may ask for their text, and answers show it."""
    guided_json: Annotated[object, documented(JsonSchema | str)] = None
    guided_regex: Text | None = None
    guided_grammar: Text | None = None
    guided_choice: Annotated[JsonArray | None, documented(list[str])] = None
    structured_outputs: Annotated[JsonObject | None, documented(StructuredOutputs)] = None
    regex: Text | None = None
    ebnf: Text | None = None

    def constraint_sources(self) -> Iterator[Source]:
        """Yield every field that says what may be generated. Raises FieldInvalid."""
        if self.grammar:
            yield grammar_source(self.grammar, "grammar")
        if self.json_schema is not None:
            yield schema_source(self.json_schema, "json_schema")
        yield from format_sources(self.response_format, "response_format")
        yield from _vllm_sources(
            {
                "json": self.guided_json,
                "regex": self.guided_regex,
                "grammar": self.guided_grammar,
                "choice": self.guided_choice,
            },
            "guided_",
        )
        yield from _vllm_sources(self.structured_outputs or {}, "structured_outputs.")
        yield from _vllm_sources({"regex": self.regex}, "")
        if self.ebnf is not None:
            yield grammar_source(self.ebnf, "ebnf")


def grammar_source(text: str, field: str) -> Source:
    """Return a grammar, in llguidance's language where it says so, else GBNF."""
    return Source(field, Syntax.LARK if is_lark(text) else Syntax.GBNF, text)


def schema_source(schema: object, field: str) -> Source:
    """Return a JSON schema; an empty one allows objects, as in llama-server. Raises FieldInvalid."""
    if not isinstance(schema, dict | bool):
        raise FieldInvalid(field, f"must be a JSON schema, an object, but is {json_type(schema)}")
    return Source(field, Syntax.JSON_SCHEMA, json.dumps(_ANY_OBJECT if schema == {} else schema))


def format_sources(value: object, field: str) -> Iterator[Source]:
    """Yield what a format of the answer asks for, in any of its forms; nothing for text. Raises FieldInvalid."""
    if value is None:
        return
    if not isinstance(value, dict):
        raise FieldInvalid(field, f"must be an object, but is {json_type(value)}")
    kind = value.get("type", "text")
    if kind == "json_object":
        yield schema_source(_present(value, "schema", _ANY_OBJECT), f"{field}.schema")
    elif kind == "json_schema":
        wrapper = value.get("json_schema")
        if wrapper is None:
            yield schema_source(_present(value, "schema", _ANY_OBJECT), f"{field}.schema")
        elif isinstance(wrapper, dict):
            yield schema_source(_present(wrapper, "schema", _ANY_OBJECT), f"{field}.json_schema.schema")
        else:
            raise FieldInvalid(f"{field}.json_schema", f"must be an object, but is {json_type(wrapper)}")
    elif kind != "text":
        shown = json.dumps(kind)[:200]
        raise FieldInvalid(f"{field}.type", f'must be one of "text", "json_object" and "json_schema", but got: {shown}')


def _present(value: Mapping[str, object], name: str, default: object) -> object:
    found = value.get(name)
    return default if found is None else found


def _vllm_sources(options: Mapping[str, object], prefix: str) -> Iterator[Source]:
    """Yield what vLLM's options ask for; null and, of flags, false ask for nothing. Raises FieldInvalid."""
    for name, value in options.items():
        field = f"{prefix}{name}"
        if value is None or value is False:
            continue
        if name == "json":
            yield schema_source(_parsed(value, field), field)
        elif name == "json_object":
            yield schema_source(_ANY_OBJECT, field)
        elif name == "choice":
            yield _choice_source(value, field)
        elif name in ("regex", "grammar"):
            if not isinstance(value, str):
                raise FieldInvalid(field, f"must be a string, but is {json_type(value)}")
            yield Source(field, Syntax.REGEX, value) if name == "regex" else grammar_source(value, field)
        else:
            raise FieldInvalid(field, f"is not supported, but got {json.dumps(value)[:200]}")


def _parsed(schema: object, field: str) -> object:
    """vLLM takes a schema as an object or as its text."""
    if not isinstance(schema, str):
        return schema
    try:
        parsed: object = json.loads(schema)
    except (ValueError, RecursionError) as error:
        raise FieldInvalid(field, f"is not JSON: {error}") from None
    return parsed


def _choice_source(choices: object, field: str) -> Source:
    if not isinstance(choices, list) or not choices or not all(isinstance(text, str) and text for text in choices):
        raise FieldInvalid(field, "must be a non-empty array of strings that are not empty")
    if len(choices) > _MAX_CHOICES:
        raise FieldInvalid(field, f"must be at most {_MAX_CHOICES} strings, but are {len(choices)}")
    return Source(field, Syntax.REGEX, "|".join("".join(f"\\x{{{ord(char):x}}}" for char in text) for text in choices))


@dataclass(frozen=True, slots=True)
class WantedConstraint:
    """A constraint, and the field that asked for it."""

    field: str
    text: ConstraintText


def read_constraint(body: ConstraintFields, tokenizer: Tokenizer) -> WantedConstraint | None:
    """Return the constraint that `body` asks for, None where it asks for none. Raises FieldInvalid."""
    sources = list(body.constraint_sources())
    fields = [source.field for source in sources]
    if fields[:2] == ["grammar", "json_schema"] and body.grammar_goes_before_schema:
        del sources[1], fields[1]
    if len(sources) > 1:
        raise FieldInvalid(fields[0], f"Cannot use both {fields[1]} and {fields[0]}")
    preserved = read_preserved(body.preserved_tokens, tokenizer)
    if not sources:
        return None
    triggers = None
    if body.grammar_lazy:
        triggers, trigger_tokens = _read_triggers(body.grammar_triggers, tokenizer)
        preserved |= trigger_tokens
    source = sources[0]
    return WantedConstraint(source.field, ConstraintText(source.syntax, source.text, triggers, preserved))


def read_preserved(tokens: list[object], tokenizer: Tokenizer) -> frozenset[int]:
    """Return the control tokens that are named by text or id. A text that is no token needs nothing. Raises
    FieldInvalid.
    """
    if len(tokens) > _MAX_PRESERVED:
        raise FieldInvalid("preserved_tokens", f"must be at most {_MAX_PRESERVED} tokens, but are {len(tokens)}")
    found = set()
    for index, token in enumerate(tokens):
        token_id = _token(token, f"preserved_tokens[{index}]", tokenizer)
        if token_id is not None and tokenizer.is_control(token_id) and token_id not in tokenizer.eog_ids:
            found.add(token_id)
    return frozenset(found)


def _token(token: object, field: str, tokenizer: Tokenizer) -> int | None:
    if isinstance(token, str):
        ids = tokenizer.encode(token)
        return ids[0] if len(ids) == 1 else None
    if not isinstance(token, int) or isinstance(token, bool):
        raise FieldInvalid(field, f"must be the text or the id of a token, but is {json_type(token)}")
    if not 0 <= token < tokenizer.vocab_size:
        raise FieldInvalid(field, f"must be a token id, 0 to {tokenizer.vocab_size - 1}, but got {token}")
    return token


def _read_triggers(values: list[object], tokenizer: Tokenizer) -> tuple[Triggers, frozenset[int]]:
    """Return the triggers, and those of their tokens that are control tokens. Raises FieldInvalid."""
    if not 0 < len(values) <= _MAX_TRIGGERS:
        raise FieldInvalid("grammar_triggers", f"a lazy grammar needs 1 to {_MAX_TRIGGERS}, but got {len(values)}")
    words: list[str] = []
    token_ids: list[int] = []
    patterns: list[Pattern] = []
    for index, value in enumerate(values):
        field = f"grammar_triggers[{index}]"
        if not isinstance(value, dict):
            raise FieldInvalid(field, f"must be an object, but is {json_type(value)}")
        kind = _trigger_kind(value.get("type"), field)
        if kind == "token":
            token_id = _token(value.get("token", value.get("value")), f"{field}.token", tokenizer)
            if token_id is None:
                raise FieldInvalid(f"{field}.token", f"is not one token: {value.get('value')!r}")
            token_ids.append(token_id)
            continue
        text = value.get("value")
        longest = _MAX_TRIGGER_LENGTH if kind == "word" else _MAX_PATTERN_LENGTH
        if not isinstance(text, str) or not 0 < len(text) <= longest:
            raise FieldInvalid(f"{field}.value", f"must be a string of 1 to {longest} characters")
        if kind != "word":
            patterns.append(_read_pattern(text, f"{field}.value", is_whole=kind == "pattern_full"))
            continue
        word_token = _token(text, field, tokenizer)
        if word_token is not None and tokenizer.is_control(word_token):
            token_ids.append(word_token)
        words.append(text)
    control = frozenset(token_id for token_id in token_ids if tokenizer.is_control(token_id))
    return Triggers(tuple(words), tuple(token_ids), tuple(patterns)), control


def _read_pattern(regex: str, field: str, *, is_whole: bool) -> Pattern:
    try:
        TriggerPattern(regex, is_whole=is_whole)
    except RegexError as error:
        raise FieldInvalid(field, str(error)) from None
    return Pattern(regex, is_whole)


def _trigger_kind(value: object, field: str) -> str:
    kind = _TRIGGER_KINDS[value] if isinstance(value, int) and value in range(len(_TRIGGER_KINDS)) else value
    if kind in _TRIGGER_KINDS:
        return str(kind)
    expected = "must be 0 (a token), 1 (a word), 2 (a pattern) or 3 (one of the whole text)"
    raise FieldInvalid(f"{field}.type", f"{expected}, but got {json.dumps(value)[:200]}")


async def compile_constraint(
    compiler: ConstraintCompiler, tokenizer: Tokenizer, wanted: WantedConstraint
) -> Constraint:
    """Return a constraint for the tokens of `tokenizer`: at once where it was asked for lately, else compiled beside
    the event loop. Raises FieldInvalid with the reason of the engine.
    """
    kept = compiler.kept(tokenizer, wanted.text)
    if kept is not None:
        return kept
    compiling = asyncio.wrap_future(compiler.compile(tokenizer, wanted.text))
    try:
        return await asyncio.wait_for(compiling, _COMPILE_LIMIT_S)
    except ConstraintError as error:
        raise FieldInvalid(wanted.field, str(error)) from None
    except TimeoutError:
        raise FieldInvalid(wanted.field, f"was not compiled within {_COMPILE_LIMIT_S:g} s") from None
