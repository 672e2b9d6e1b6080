"""Whether both servers answer the same requests in the same form: status, content type, fields, their order and types,
and the values that are the same on both."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from tests.differential.pair import Answer, Pair
from tests.differential.shape import Difference, differences

_GREEDY: dict[str, object] = {"temperature": 0, "seed": 1}
_TEXT: dict[str, object] = {"prompt": "The capital of France is", "max_tokens": 6, **_GREEDY}
_NATIVE: dict[str, object] = {"prompt": "The capital of France is", "n_predict": 6, "cache_prompt": False, **_GREEDY}
_CHAT: dict[str, object] = {"messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 6, **_GREEDY}
_USAGE = {"stream": True, "stream_options": {"include_usage": True}}


@dataclass(frozen=True, slots=True)
class Call:
    """One request for both."""

    name: str
    path: str
    body: object = None
    """None: a GET."""


CALLS = (
    Call("health", "/health"),
    Call("props", "/props"),
    Call("models", "/v1/models"),
    Call("idle slots", "/slots"),
    Call("adapters", "/lora-adapters"),
    Call("set scales", "/lora-adapters", [{"id": 0, "scale": 0.5}]),
    Call("adapters after", "/lora-adapters"),
    Call("native", "/completion", _NATIVE),
    Call("native with adapters", "/completion", {**_NATIVE, "lora": [{"id": 1, "scale": 0.5}]}),
    Call("native tokens", "/completion", {**_NATIVE, "return_tokens": True}),
    Call("native probabilities", "/completion", {**_NATIVE, "n_probs": 2}),
    Call("native probabilities after sampling", "/completion", {**_NATIVE, "n_probs": 2, "post_sampling_probs": True}),
    Call("native of two prompts", "/completion", {**_NATIVE, "prompt": ["one two", [100, 101]]}),
    Call("native choices", "/completion", {**_NATIVE, "n": 2}),
    Call("native stopped by a word", "/completion", {**_NATIVE, "stop": ["Paris"]}),
    Call("native fields", "/completion", {**_NATIVE, "response_fields": ["content", "timings/prompt_n", "nope"]}),
    Call("native nothing to predict", "/completion", {**_NATIVE, "n_predict": 0}),
    Call("native bias", "/completion", {**_NATIVE, "logit_bias": [["a", False]]}),
    Call("native stream", "/completion", {**_NATIVE, "stream": True}),
    Call("native stream with timings", "/completion", {**_NATIVE, "stream": True, "timings_per_token": True}),
    Call("native stream with probabilities", "/completion", {**_NATIVE, "stream": True, "n_probs": 1}),
    Call("text", "/v1/completions", _TEXT),
    Call("text logprobs", "/v1/completions", {**_TEXT, "logprobs": 2}),
    Call("text of two prompts", "/v1/completions", {**_TEXT, "prompt": ["one two", "three"]}),
    Call("text stream", "/v1/completions", {**_TEXT, "stream": True}),
    Call("text stream with usage", "/v1/completions", {**_TEXT, **_USAGE}),
    Call("chat", "/v1/chat/completions", _CHAT),
    Call("chat logprobs", "/v1/chat/completions", {**_CHAT, "logprobs": True, "top_logprobs": 2}),
    Call("chat choices", "/v1/chat/completions", {**_CHAT, "n": 2}),
    Call("chat stream", "/v1/chat/completions", {**_CHAT, "stream": True}),
    Call("chat stream with usage", "/v1/chat/completions", {**_CHAT, **_USAGE}),
    Call("responses", "/v1/responses", {"input": "Say hello.", "max_output_tokens": 6, **_GREEDY}),
    Call("messages", "/v1/messages", {**_CHAT, "model": "m"}),
    Call("count tokens", "/v1/messages/count_tokens", {**_CHAT, "model": "m"}),
    Call("tokenize", "/tokenize", {"content": "Hello, world"}),
    Call("tokenize with pieces", "/tokenize", {"content": "Hello, 🙂", "with_pieces": True}),
    Call("tokenize nothing", "/tokenize", {}),
    Call("detokenize", "/detokenize", {"tokens": [100, 200]}),
    Call("template", "/apply-template", {"messages": _CHAT["messages"]}),
    Call("unknown path", "/nope"),
    Call("wrong method", "/completion"),
    Call("no prompt", "/completion", {}),
    Call("empty prompts", "/completion", {"prompt": []}),
    Call("prompt of a wrong type", "/completion", {"prompt": {"a": 1}}),
    Call("no object", "/completion", [1]),
    Call("n_predict of a wrong type", "/completion", {**_NATIVE, "n_predict": "six"}),
    Call("n_predict too small", "/completion", {**_NATIVE, "n_predict": -2}),
    Call("too many choices", "/completion", {**_NATIVE, "n": 1000}),
    Call("token outside the vocabulary", "/completion", {**_NATIVE, "prompt": [10**6]}),
    Call("prompt too long", "/completion", {**_NATIVE, "prompt": [100] * 2000}),
    Call("adapters of a wrong type", "/completion", {**_NATIVE, "lora": "all"}),
    Call("scales of a wrong type", "/lora-adapters", {"id": 0}),
    Call("no messages", "/v1/chat/completions", {}),
    Call("messages of a wrong type", "/v1/chat/completions", {"messages": "hi"}),
    Call("message without content", "/v1/chat/completions", {"messages": [{"role": "user"}]}),
    Call("top_logprobs alone", "/v1/chat/completions", {**_CHAT, "top_logprobs": 2}),
    Call("unknown slot action", "/slots/0?action=explode", {}),
    Call("properties are not set", "/props", {}),
)


@dataclass(frozen=True, slots=True)
class Documented:
    """Differences that are meant, and where docs/compatibility.md says so."""

    calls: str
    """A pattern of names of calls."""
    path: str
    """A pattern of paths."""
    kinds: str
    """Their kinds, separated by spaces."""
    line: str
    """Words of the line in docs/compatibility.md."""

    def covers(self, call: Call, difference: Difference) -> bool:
        """Whether a difference is one of these."""
        return (
            fnmatchcase(call.name, self.calls)
            and fnmatchcase(difference.path, self.path)
            and difference.kind in self.kinds.split()
        )


DOCUMENTED = (
    Documented(
        "*", "*generation_settings.lora*", "length added value", "is the effective list, with names beside the ids"
    ),
    Documented(
        "*", "*generation_settings.*", "missing", "`generation_settings` leaves out the settings of what does not exist"
    ),
    Documented(
        "native nothing to predict",
        "generation_settings.*",
        "value",
        "`n_predict` and `max_tokens` in `generation_settings` are how many tokens may come",
    ),
    Documented("props", "*", "missing added", "`/props` leaves out"),
    Documented("props", "default_generation_settings.params.lora", "length", "is the effective list"),
    Documented("models", "data*", "length added", "`/v1/models` lists the base model first, then every adapter"),
    Documented("models", "*", "missing value", "`architecture` and `vocab_type` are left out"),
    Documented("idle slots", "*", "missing added", "may get another one of the idle slots"),
    Documented("idle slots", "*has_new_line", "missing", "`/slots` does not show `has_new_line`"),
    Documented(
        "text stream", "*.usage", "missing", "llama-server always adds it to the last chunk of a text completion"
    ),
    Documented("text logprobs", "choices.*.logprobs.*", "added", "answers in OpenAI's lists too"),
    Documented("text stream with usage", "*", "missing length type", "Usage in a stream is a last chunk with empty"),
    Documented("detokenize", "prompt", "added", "`/detokenize` also answers with `prompt`"),
    Documented("unknown path", "error", "order", "Fields of every error come in the order"),
    Documented("wrong method", "error", "order", "Fields of every error come in the order"),
    Documented("responses", "*", "added order", "A response has all fields of OpenAI's"),
    Documented("responses", "*status", "value", "has the status `incomplete` (`max_output_tokens`)"),
    Documented("responses", "completed_at", "type", "has the status `incomplete` (`max_output_tokens`)"),
    Documented("messages", "usage*", "added order", "`usage` has Anthropic's fields in its order"),
    Documented("chat choices", "usage.*", "value", "Usage of several choices is one sum"),
    Documented("text of two prompts", "usage.*", "value", "Usage of several choices is one sum"),
)


@dataclass(frozen=True, slots=True)
class Compared:
    """What came out for one request."""

    call: Call
    documented: Sequence[Difference]
    others: Sequence[Difference]


def compare_answers(pair: Pair) -> Iterator[Compared]:
    """Send every request to both, one after the other."""
    for call in CALLS:
        ours, peers = pair.get(call.path) if call.body is None else pair.post(call.path, call.body)
        found = sorted({*_of_answers(ours, peers)})
        documented = [one for one in found if any(known.covers(call, one) for known in DOCUMENTED)]
        yield Compared(call, documented, [one for one in found if one not in documented])


def _of_answers(ours: Answer, peers: Answer) -> Iterator[Difference]:
    if ours.status != peers.status:
        yield Difference("(status)", "value", f"{ours.status} for {peers.status}")
    if ours.content_type != peers.content_type:
        yield Difference("(content type)", "value", f"{ours.content_type} for {peers.content_type}")
    yield from differences(ours.body, peers.body)
