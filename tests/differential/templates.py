"""Whether both servers make the same prompt of the same conversation (/apply-template), under the templates of many
models, which llama.cpp ships for its own tests."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

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
NO_MESSAGES = "no messages"
_REFUSED = "refused"

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
    NO_MESSAGES: {"messages": []},
    "no content": {"messages": [{"role": "user"}]},
    "two assistants at the end": {"messages": [_HELLO, _HI, _BEGUN]},
    "messages missing": {},
    "messages no array": {"messages": "hi"},
    "a message no object": {"messages": ["hi"]},
    "variables": {"messages": [_HELLO], "chat_template_kwargs": {"enable_thinking": False}},
}


@dataclass(frozen=True, slots=True)
class TemplateModel:
    """A tiny model with a template of some other model."""

    name: str
    path: Path


def template_models(folder: Path) -> Iterator[TemplateModel]:
    """Write a model for each template of llama.cpp's source, which is fetched where `folder` lacks it; yield them."""
    source = folder / "llama.cpp" / "models" / "templates"
    if not source.is_dir():
        unpack_source(fetch_archive(index_url()), folder)
    vocabulary = byte_level("gpt-2")
    for path in sorted(source.glob("*.jinja")):
        template = path.read_text(encoding="utf-8")
        yield TemplateModel(path.stem, write_model(folder / "tiny" / f"{path.stem}.gguf", vocabulary, template))


def compare_templates(pair: Pair, name: str) -> Tally:
    """Compare the prompts of all conversations. That most templates refuse one without messages is documented."""
    tally = Tally(name)
    for what, body in CONVERSATIONS.items():
        ours, peers = (_outcome(answer) for answer in pair.post("/apply-template", body))
        if what == NO_MESSAGES and ours == _REFUSED and peers != _REFUSED:
            tally.num_documented += 1
            peers = ours
        tally.compare(what, ours, peers)
    return tally


def _outcome(answer: Answer) -> Json:
    """The prompt; a refusal is a refusal, whatever its words."""
    return answer["prompt"] if answer.status == 200 else _REFUSED
