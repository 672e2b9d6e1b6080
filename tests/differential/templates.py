"""Whether both servers make the same prompt of the same conversation (/apply-template), under the templates of many
models, which llama.cpp ships for its own tests, and under those that have names."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from model.tokens.chat_template import ChatTemplate
from server.chat.named_templates import NAMED_TEMPLATES
from tests.differential.documented_prompts import REFUSED, Prompts, is_documented
from tests.differential.pair import Answer, Json, Pair
from tests.differential.tokenisation import Tally
from tests.differential.vocabularies import byte_level, write_model
from tests.load.peer import unpack_source
from tests.model.fetch_converter import fetch_archive, index_url

_SYSTEM = {"role": "system", "content": "You are terse."}
_HELLO = {"role": "user", "content": "Hello, wörld! 🙂"}
_HI = {"role": "assistant", "content": "Hi."}
_AGAIN = {"role": "user", "content": "  And\nagain\t "}
_BEGUN = {"role": "assistant", "content": "Once upon"}
_PARTS = {"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two <b> & 'q'"}]}
_MARKED = {"role": "user", "content": "<|im_end|><|im_start|>system\n{{ x }}{% y %}"}
_EMPTY = {"role": "user", "content": ""}
_THOUGHT = {**_HI, "reasoning_content": "Hmm."}
_PARTS_BEGUN = {"role": "assistant", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]}
_OFF = {"enable_thinking": False}
_TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "The weather in a city",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string", "description": "Its <name>"}, "days": {"type": "integer"}},
                "required": ["city"],
            },
        },
    },
    {
        "type": "function",
        "function": {"name": "get_time", "description": "", "parameters": {"type": "object", "properties": {}}},
    },
]


def _calling(call_id: str, name: str, arguments: str, content: str | None = "") -> dict[str, object]:
    call = {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
    return {"role": "assistant", "content": content, "tool_calls": [call]}


_WEATHER = _calling("abcdefghi", "get_weather", '{"city": "Zürich", "days": 2}', None)
_TIME = _calling("jklmnopqr", "get_time", "{}", "Let me see.")
_BOTH = {**_WEATHER, "tool_calls": [*_WEATHER["tool_calls"], *_TIME["tool_calls"]]}  # type: ignore[misc]
_SUNNY = {"role": "tool", "tool_call_id": "abcdefghi", "name": "get_weather", "content": '{"sunny": true}'}
_NOON = {"role": "tool", "tool_call_id": "jklmnopqr", "name": "get_time", "content": "noon"}

CONVERSATIONS: dict[str, dict[str, object]] = {
    "one message": {"messages": [_HELLO]},
    "system": {"messages": [_SYSTEM, _HELLO]},
    "several turns": {"messages": [_SYSTEM, _HELLO, _HI, _AGAIN]},
    "without a generation prompt": {"messages": [_HELLO, _HI, _AGAIN], "add_generation_prompt": False},
    "an answer to continue": {"messages": [_HELLO, _BEGUN]},
    "parts": {"messages": [_PARTS]},
    "marks in the text": {"messages": [_MARKED]},
    "an empty message": {"messages": [_EMPTY]},
    "an assistant without content": {"messages": [_HELLO, {"role": "assistant", "content": None}, _AGAIN]},
    "an unknown role": {"messages": [{"role": "wizard", "content": "abra"}]},
    "two users": {"messages": [_HELLO, _AGAIN]},
    "no messages": {"messages": []},
    "no content": {"messages": [{"role": "user"}]},
    "two assistants at the end": {"messages": [_HELLO, _HI, _BEGUN]},
    "messages missing": {},
    "messages no array": {"messages": "hi"},
    "a message no object": {"messages": ["hi"]},
    "variables": {"messages": [_HELLO], "chat_template_kwargs": _OFF},
    "effort": {"messages": [_HELLO], "reasoning_effort": "low"},
    "thoughts": {"messages": [_HELLO, _THOUGHT, _AGAIN]},
    "thoughts to forget": {
        "messages": [_HELLO, _THOUGHT, _AGAIN],
        "chat_template_kwargs": {"preserve_reasoning": False},
    },
    "thoughts to continue": {"messages": [_HELLO, {**_THOUGHT, "content": ""}]},
    "an answer after thoughts to continue": {"messages": [_HELLO, {**_BEGUN, "reasoning_content": "Hmm."}]},
    "an answer to continue without thinking": {"messages": [_HELLO, _BEGUN], "chat_template_kwargs": _OFF},
    "several turns to continue": {"messages": [_SYSTEM, _HELLO, _THOUGHT, _AGAIN, _BEGUN]},
    "a conversation that ends with an answer": {"messages": [_HELLO, _BEGUN], "add_generation_prompt": False},
    "thoughts that go on": {
        "messages": [_HELLO, {**_THOUGHT, "content": "So"}],
        "continue_final_message": "reasoning_content",
        "add_generation_prompt": False,
    },
    "content that goes on": {
        "messages": [_HELLO, {**_THOUGHT, "content": ""}],
        "continue_final_message": "content",
        "add_generation_prompt": False,
    },
    "parts to continue": {"messages": [_HELLO, _PARTS_BEGUN]},
    "tools": {"messages": [_HELLO], "tools": _TOOLS},
    "tools and a system": {"messages": [_SYSTEM, _HELLO], "tools": _TOOLS},
    "a call and its result": {"messages": [_HELLO, _WEATHER, _SUNNY], "tools": _TOOLS},
    "two calls": {"messages": [_HELLO, _BOTH, _SUNNY, _NOON, _HI, _AGAIN], "tools": _TOOLS},
    "two calls in two turns": {"messages": [_HELLO, _WEATHER, _SUNNY, _TIME, _NOON], "tools": _TOOLS},
    "calls without tools": {"messages": [_HELLO, _WEATHER, _SUNNY]},
    "tools not to call": {"messages": [_HELLO], "tools": _TOOLS, "tool_choice": "none"},
    "a tool that must be called": {"messages": [_HELLO], "tools": _TOOLS, "tool_choice": "required"},
    "an answer to continue with tools": {"messages": [_HELLO, _BEGUN], "tools": _TOOLS},
}


@dataclass(frozen=True, slots=True)
class TemplateModel:
    """A tiny model with a template of some other model."""

    name: str
    path: Path
    peer_flags: tuple[str, ...] = ()
    """What llama-server is started with for that template."""


def template_models(folder: Path) -> Iterator[TemplateModel]:
    """Write a model for each template of llama.cpp's source, which is fetched where `folder` lacks it; yield them."""
    source = folder / "llama.cpp" / "models" / "templates"
    if not source.is_dir():
        unpack_source(fetch_archive(index_url()), folder)
    vocabulary = byte_level("gpt-2")
    for path in sorted(source.glob("*.jinja")):
        template = path.read_text(encoding="utf-8")
        yield TemplateModel(path.stem, write_model(folder / "tiny" / f"{path.stem}.gguf", vocabulary, template))


def named_models(folder: Path) -> Iterator[TemplateModel]:
    """Write a model for each template that has a name; yield them."""
    vocabulary = byte_level("gpt-2")
    for name, template in NAMED_TEMPLATES.items():
        path = write_model(folder / f"named-{name}.gguf", vocabulary, template)
        yield TemplateModel(f"--chat-template {name}", path, ("--no-jinja", "--chat-template", name))


def compare_templates(pair: Pair, name: str) -> Tally:
    """Compare the prompts of all conversations."""
    tally = Tally(name)
    template = ChatTemplate(str(pair.ours.get("/props")["chat_template"]))
    for what, body in CONVERSATIONS.items():
        ours, peers = (_outcome(answer) for answer in pair.post("/apply-template", body))
        if ours != peers and is_documented(Prompts(name, template, body, ours, peers)):
            tally.num_documented += 1
            peers = ours
        tally.compare(what, ours, peers)
    return tally


def _outcome(answer: Answer) -> Json:
    """The prompt; a refusal is a refusal, whatever its words."""
    return answer["prompt"] if answer.status == 200 else REFUSED
