"""Replies with calls as each family of models writes them, for its reader to read."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from server.tools import formats
from server.tools.fields import Tool
from server.tools.formats import CallFormat

Arguments = Mapping[str, object]
Calls = tuple[tuple[str, Arguments], ...]

PROPERTIES: Mapping[str, object] = {
    "text": {"type": "string"},
    "kind": {"enum": ["a", "b"]},
    "count": {"type": "integer"},
    "flag": {"type": ["boolean", "null"]},
    "list": {"type": "array", "items": {}},
    "tree": {"type": "object"},
}
SCHEMA: Mapping[str, object] = {"type": "object", "properties": PROPERTIES, "additionalProperties": True}
TOOLS = (Tool("get_weather", "", SCHEMA), Tool("sum", "", SCHEMA))
NAMES = tuple(tool.name for tool in TOOLS)


@dataclass(frozen=True)
class Family:
    """A form, and how text and calls are written in it."""

    form: CallFormat
    write: Callable[[Calls], str]
    has_bare_keys: bool = False
    """Whether keys are names."""
    is_tagged: bool = False
    """Whether the text of a value can be mistaken: it holds no tags then."""


def _object(name: str, arguments: Arguments, key: str = "arguments") -> str:
    return json.dumps({"name": name, key: arguments})


def _wrapped(before: str, behind: str) -> Callable[[Calls], str]:
    return lambda calls: "\n".join(f"{before}{_object(*call)}{behind}" for call in calls)


def _array(before: str, behind: str = "") -> Callable[[Calls], str]:
    return lambda calls: f"{before}[{', '.join(_object(*call) for call in calls)}]{behind}" if calls else ""


def _command(calls: Calls) -> str:
    objects = [
        json.dumps({"tool_call_id": str(index), "tool_name": name, "parameters": arguments})
        for index, (name, arguments) in enumerate(calls)
    ]
    lines = ",\n    ".join(objects)
    return f"<|START_ACTION|>[\n    {lines}\n]<|END_ACTION|>" if calls else ""


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _function(before: str, behind: str, pad: str = "\n") -> Callable[[Calls], str]:
    def one(name: str, arguments: Arguments) -> str:
        parameters = "".join(
            f"<parameter={key}>{pad}{_text(value)}{pad}</parameter>\n" for key, value in arguments.items()
        )
        return f"{before}<function={name}>\n{parameters}</function>{behind}"

    return lambda calls: "\n".join(one(*call) for call in calls)


def _glm(pad: str) -> Callable[[Calls], str]:
    def one(name: str, arguments: Arguments) -> str:
        parameters = "".join(
            f"<arg_key>{key}</arg_key>{pad}<arg_value>{_text(value)}</arg_value>{pad}"
            for key, value in arguments.items()
        )
        return f"<tool_call>{name}{pad}{parameters}</tool_call>"

    return lambda calls: pad.join(one(*call) for call in calls)


def _invoked(section: str, mark: str = "", *, says_type: bool = False) -> Callable[[Calls], str]:
    def one(name: str, arguments: Arguments) -> str:
        parameters = ""
        for key, value in arguments.items():
            kind = f' string="{json.dumps(isinstance(value, str))}"' if says_type else ""
            parameters += f'<{mark}parameter name="{key}"{kind}>{_text(value)}</{mark}parameter>\n'
        return f'<{mark}invoke name="{name}">\n{parameters}</{mark}invoke>\n'

    return lambda calls: f"<{section}>\n{''.join(one(*call) for call in calls)}</{section}>" if calls else ""


def _minicpm(calls: Calls) -> str:
    return "\n".join(
        f'<function name="{name}">'
        + "".join(f'<param name="{key}">{_text(value)}</param>' for key, value in arguments.items())
        + "</function>"
        for name, arguments in calls
    )


def _deepseek(before: str, between: str, behind: str) -> Callable[[Calls], str]:
    def write(calls: Calls) -> str:
        each = "\n".join(
            f"<｜tool▁call▁begin｜>{before}{name}{between}{json.dumps(arguments)}{behind}<｜tool▁call▁end｜>"
            for name, arguments in calls
        )
        return f"<｜tool▁calls▁begin｜>{each}<｜tool▁calls▁end｜>" if calls else ""

    return write


def _kimi(calls: Calls) -> str:
    each = "".join(
        f"<|tool_call_begin|>functions.{name}:{index}<|tool_call_argument_begin|>{json.dumps(arguments)}"
        "<|tool_call_end|>"
        for index, (name, arguments) in enumerate(calls)
    )
    return f"<|tool_calls_section_begin|>{each}<|tool_calls_section_end|>" if calls else ""


def _named(before: str, between: str, behind: str = "") -> Callable[[Calls], str]:
    return lambda calls: "".join(f"{before}{name}{between}{json.dumps(arguments)}{behind}" for name, arguments in calls)


def _python(calls: Calls) -> str:
    def one(name: str, arguments: Arguments) -> str:
        written = (f"{key}={_literal(value)}" for key, value in arguments.items())
        return f"{name}({', '.join(written)})"

    return f"<|tool_call_start|>[{', '.join(one(*call) for call in calls)}]<|tool_call_end|>" if calls else ""


def _literal(value: object) -> str:
    return json.dumps(value) if isinstance(value, list | dict) else repr(value)


def _gemma(calls: Calls) -> str:
    def braces(value: Arguments, quote: str = '<|"|>') -> str:
        members = (f"{quote}{key}{quote}:{written(value[key])}" for key in sorted(value, key=str.lower))
        return f"{{{','.join(members)}}}"

    def written(value: object) -> str:
        match value:
            case str():
                return f'<|"|>{value}<|"|>'
            case dict():
                return braces(value)
            case list():
                return f"[{','.join(map(written, value))}]"
            case _:
                return json.dumps(value)

    return "".join(f"<|tool_call>call:{name}{braces(arguments, '')}<tool_call|>" for name, arguments in calls)


FAMILIES: Mapping[str, Family] = {
    "hermes": Family(formats.HERMES, _wrapped("<tool_call>\n", "\n</tool_call>")),
    "llama": Family(
        formats.LLAMA, lambda calls: "\n".join(_object(name, arguments, "parameters") for name, arguments in calls)
    ),
    "generic": Family(formats.GENERIC, _wrapped("", "")),
    "mistral": Family(formats.MISTRAL, _array("[TOOL_CALLS]")),
    "mistral_named": Family(formats.MISTRAL_NAMED, _named("[TOOL_CALLS]", "[ARGS]")),
    "qwen_coder": Family(formats.QWEN_CODER, _function("<tool_call>\n", "\n</tool_call>"), is_tagged=True),
    "qwen_coder_bare": Family(formats.QWEN_CODER, _function("", "\n</tool_call>"), is_tagged=True),
    "seed": Family(formats.SEED, _function("<seed:tool_call>\n", "\n</seed:tool_call>", pad=""), is_tagged=True),
    "glm": Family(formats.GLM, _glm("\n"), is_tagged=True),
    "glm_tight": Family(formats.GLM, _glm(""), is_tagged=True),
    "minimax": Family(formats.MINIMAX, _invoked("minimax:tool_call"), is_tagged=True),
    "minimax_m1": Family(
        formats.MINIMAX_M1,
        lambda calls: _wrapped("", "")(calls) and f"<tool_calls>\n{_wrapped('', '')(calls)}\n</tool_calls>",
    ),
    "deepseek_3_2": Family(
        formats.DEEPSEEK_3_2, _invoked("｜DSML｜function_calls", "｜DSML｜", says_type=True), is_tagged=True
    ),
    "deepseek_4": Family(
        formats.DEEPSEEK_4, _invoked("｜DSML｜tool_calls", "｜DSML｜", says_type=True), is_tagged=True
    ),
    "minicpm": Family(formats.MINICPM, _minicpm, is_tagged=True),
    "deepseek": Family(formats.DEEPSEEK, _deepseek("", "<｜tool▁sep｜>", "")),
    "deepseek_r1": Family(formats.DEEPSEEK_R1, _deepseek("function<｜tool▁sep｜>", "\n```json\n", "\n```")),
    "kimi": Family(formats.KIMI, _kimi),
    "functionary": Family(formats.FUNCTIONARY, _named("<function=", ">", "</function>")),
    "command": Family(formats.COMMAND_R7B, _command),
    "granite": Family(formats.GRANITE, _array("<|tool_call|>")),
    "nemotron": Family(formats.NEMOTRON_NANO, _array("<TOOLCALL>", "</TOOLCALL>")),
    "apriel": Family(formats.APRIEL, _array("<tool_calls>", "</tool_calls>")),
    "gemma": Family(formats.GEMMA_4, _gemma, has_bare_keys=True),
    "lfm2": Family(formats.LFM2, _python, has_bare_keys=True),
    "gigachat": Family(formats.GIGACHAT, _wrapped("<|function_call|>", "")),
}
