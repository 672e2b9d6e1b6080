"""Constrained requests over real HTTP: every field on every route, and what is refused."""

import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from tests.server.constrained import SamplingExecutor
from tests.server.fakes import BODIES, EOS, TURN, fake_engine
from tests.server.live import LiveServer, frames

SCHEMA = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}, "kind": {"enum": ["a", "b"]}},
    "required": ["ok", "kind"],
    "additionalProperties": False,
}
DIGITS = re.compile(r"[0-9]{3}")


@pytest.fixture(scope="module")
def constrained() -> Iterator[httpx.Client]:
    with LiveServer(lambda settings: fake_engine(SamplingExecutor())) as server, server.client() as client:
        yield client


def content(answer: dict[str, object]) -> str:
    """The text of an answer of any route."""
    if "content" in answer:
        return str(answer["content"])
    choice = answer["choices"][0]  # type: ignore[index]
    return str(choice["text"] if "text" in choice else choice["message"]["content"])


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize(
    "fields",
    [
        {"grammar": "root ::= [0-9]{3}"},
        {"grammar": "%llguidance {}\nstart: /[0-9]{3}/"},
        {"guided_regex": "[0-9]{3}"},
        {"regex": "[0-9]{3}"},
        {"guided_grammar": "root ::= digit digit digit\ndigit ::= [0-9]"},
        {"ebnf": "root ::= [0-9]{3}"},
        {"guided_choice": ["123", "456"]},
        {"structured_outputs": {"regex": "[0-9]{3}", "json": None}},
        {"structured_outputs": {"choice": ["123"]}},
        {"structured_outputs": {"grammar": "root ::= [0-9]{3}"}},
    ],
)
def test_the_text_keeps_to_a_constraint(constrained: httpx.Client, path: str, fields: dict[str, object]) -> None:
    answer = constrained.post(path, json=BODIES[path] | fields | {"n_predict": 50}).json()
    assert DIGITS.fullmatch(content(answer)), answer
    if "choices" in answer:
        assert answer["choices"][0]["finish_reason"] == "stop"
    else:
        assert answer["stop_type"] == "eos"


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize(
    "fields",
    [
        {"json_schema": SCHEMA},
        {"response_format": {"type": "json_object", "schema": SCHEMA}},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": SCHEMA}}},
        {"response_format": {"type": "json_schema", "schema": SCHEMA}},
        {"guided_json": SCHEMA},
        {"guided_json": json.dumps(SCHEMA)},
        {"structured_outputs": {"json": SCHEMA}},
    ],
)
def test_the_text_keeps_to_a_schema(constrained: httpx.Client, path: str, fields: dict[str, object]) -> None:
    answer = constrained.post(path, json=BODIES[path] | fields | {"n_predict": 200, "temperature": 0}).json()
    value = json.loads(content(answer))
    assert set(value) == {"ok", "kind"}
    assert isinstance(value["ok"], bool)
    assert value["kind"] in ("a", "b")


def test_a_response_keeps_to_its_format(constrained: httpx.Client) -> None:
    text = {"format": {"type": "json_schema", "name": "x", "strict": True, "schema": SCHEMA}}
    answer = constrained.post("/v1/responses", json={"input": "abc", "text": text, "max_output_tokens": 200}).json()
    assert set(json.loads(answer["output"][0]["content"][0]["text"])) == {"ok", "kind"}
    assert answer["status"] == "completed"
    assert answer["text"] == text
    answer = constrained.post("/v1/responses", json={"input": "abc", "max_output_tokens": 1}).json()
    assert answer["text"] == {"format": {"type": "text"}}


@pytest.mark.parametrize("field", ["output_format", "output_config"])
def test_a_message_keeps_to_its_format(constrained: httpx.Client, field: str) -> None:
    form: dict[str, object] = {"type": "json_schema", "schema": SCHEMA}
    body = {"max_tokens": 200, "messages": [{"role": "user", "content": "abc"}]}
    answer = constrained.post(
        "/v1/messages", json={**body, field: form if "format" in field else {"format": form}}
    ).json()
    assert set(json.loads(answer["content"][0]["text"])) == {"ok", "kind"}
    assert answer["stop_reason"] == "end_turn"


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        ("/completion", {"grammar": "root ::= ("}, "Field 'grammar': line 1, column 11: expecting ')'"),
        ("/completion", {"grammar": 5}, "Field 'grammar': type must be string, but is number"),
        ("/completion", {"json_schema": {"type": "hiccup"}}, "Field 'json_schema': failed to compile"),
        ("/completion", {"json_schema": 5}, "Field 'json_schema': must be a JSON schema, an object, but is number"),
        ("/v1/completions", {"response_format": {"type": "sound"}}, "Field 'response_format.type': must be one of "),
        ("/v1/chat/completions", {"response_format": "json"}, "Field 'response_format': must be an object, but is str"),
        (
            "/v1/chat/completions",
            {"response_format": {"type": "json_object", "schema": 123}},
            "Field 'response_format.schema': must be a JSON schema, an object, but is number",
        ),
        (
            "/v1/chat/completions",
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {"$ref": "#/nowhere"}}}},
            "Field 'response_format.json_schema.schema': ",
        ),
        (
            "/v1/chat/completions",
            {"json_schema": {}, "grammar": "root ::= [a-z]"},
            "Field 'grammar': Cannot use both json_schema and grammar",
        ),
        (
            "/completion",
            {"guided_regex": "a", "guided_choice": ["a"]},
            "Field 'guided_regex': Cannot use both guided_choice and guided_regex",
        ),
        (
            "/completion",
            {"guided_regex": "(a"},
            "Field 'guided_regex': invalid regex",
        ),
        ("/completion", {"guided_choice": []}, "Field 'guided_choice': must be a non-empty array of strings"),
        ("/completion", {"guided_json": "{"}, "Field 'guided_json': is not JSON: "),
        (
            "/completion",
            {"structured_outputs": {"structural_tag": {}}},
            "Field 'structured_outputs.structural_tag'",
        ),
        ("/completion", {"structured_outputs": {"regex": 5}}, "Field 'structured_outputs.regex': must be a string"),
        (
            "/completion",
            {"grammar": "root ::= [a]", "grammar_lazy": True},
            "Field 'grammar_triggers': a lazy",
        ),
        (
            "/completion",
            {"grammar": "root ::= [a]", "grammar_lazy": True, "grammar_triggers": [{"type": 1, "value": "b"}]},
            "Field 'grammar': cannot begin with the trigger 'b'",
        ),
        (
            "/completion",
            {"grammar": "root ::= [a]", "grammar_lazy": True, "grammar_triggers": [{"type": 4, "value": "a"}]},
            "Field 'grammar_triggers[0].type': must be 0 (a token), 1 (a word), 2 (a pattern) or 3 (one of the whole",
        ),
        (
            "/completion",
            {"grammar": "root ::= [a]", "grammar_lazy": True, "grammar_triggers": [{"type": 2, "value": "(?=a)"}]},
            "Field 'grammar_triggers[0].value': uses assert, which is not supported",
        ),
        (
            "/completion",
            {"grammar": "root ::= [a]", "grammar_lazy": True, "grammar_triggers": [{"type": 0, "token": 999}]},
            "Field 'grammar_triggers[0].token': must be a token id, 0 to 258, but got 999",
        ),
        (
            "/completion",
            {"preserved_tokens": [{}]},
            "Field 'preserved_tokens[0]': must be the text or the id of",
        ),
        (
            "/v1/responses",
            {"input": "a", "text": {"format": {"type": "x"}}},
            "Field 'text.format.type': must be",
        ),
        (
            "/v1/responses",
            {"input": "a", "text": {"verbosity": "low"}},
            "Field 'text.verbosity': only \"medium\" is acce",
        ),
    ],
)
def test_what_cannot_be_kept_to_is_refused_on_arrival(
    constrained: httpx.Client, path: str, body: dict[str, object], message: str
) -> None:
    response = constrained.post(path, json=BODIES.get(path, {}) | body)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["message"].startswith(message)
    assert response.json()["error"]["type"] == "invalid_request_error"


def test_outside_chat_a_grammar_goes_before_a_schema(constrained: httpx.Client) -> None:
    body = {"prompt": "a", "grammar": "root ::= [0-9]{3}", "json_schema": {}, "n_predict": 20}
    assert DIGITS.fullmatch(constrained.post("/completion", json=body).json()["content"])


def test_the_settings_tell_what_was_kept_to(constrained: httpx.Client) -> None:
    def grammar_of(**fields: object) -> str:
        answer = constrained.post("/completion", json={"prompt": "a", "n_predict": 1, **fields}).json()
        return str(answer["generation_settings"]["grammar"])

    assert grammar_of() == ""
    assert grammar_of(grammar="root ::= [a-z]") == "root ::= [a-z]"
    echoed = grammar_of(json_schema=SCHEMA)
    answer = constrained.post("/completion", json={"prompt": "a", "n_predict": 200, "grammar": echoed}).json()
    assert set(json.loads(answer["content"])) == {"ok", "kind"}


@pytest.mark.parametrize("stream", [False, True])
def test_choices_and_neighbours_get_what_they_get_alone(constrained: httpx.Client, stream: bool) -> None:
    free: dict[str, object] = {"prompt": "abc", "n_predict": 30, "seed": 5, "temperature": 1.5}
    bound = free | {"grammar": "root ::= [a-z]{4,20} [.]", "n": 2, "stream": stream}

    def ask(body: dict[str, object]) -> list[str]:
        response = constrained.post("/completion", json=body)
        if not body.get("stream"):
            answers = response.json()
            return [answer["content"] for answer in (answers if isinstance(answers, list) else [answers])]
        texts = ["", ""]
        for frame in frames(response):
            texts[frame["index"]] += frame["content"]
        return texts

    alone = ask(free), ask(bound)
    with ThreadPoolExecutor(4) as pool:
        jobs = [pool.submit(ask, body) for body in (free, bound, free, bound)]
        assert [job.result() for job in jobs] == [*alone, *alone]
    for text in alone[1]:
        assert re.fullmatch(r"[a-z]{4,20}\.", text)
    assert ask(bound | {"n": 1, "seed": 6, "stream": False}) == [alone[1][1]]


def test_a_stop_string_ends_a_constrained_text(constrained: httpx.Client) -> None:
    body = {"prompt": "a", "grammar": 'root ::= [a-c]{5} "xyz" [0-9]+', "stop": ["yz"], "n_predict": 50}
    answer = constrained.post("/completion", json=body).json()
    assert re.fullmatch("[a-c]{5}x", answer["content"])
    assert (answer["stop_type"], answer["stopping_word"]) == ("word", "yz")


@pytest.mark.parametrize("ignore_eos", [False, True])
def test_a_complete_text_ends_the_answer(constrained: httpx.Client, ignore_eos: bool) -> None:
    body = {"prompt": "a", "grammar": 'root ::= "done"', "n_predict": 50, "ignore_eos": ignore_eos}
    answer = constrained.post("/completion", json=body | {"return_tokens": True}).json()
    assert (answer["content"], answer["stop_type"]) == ("done", "eos")
    assert answer["tokens"] == [*b"done"] + [EOS] * (not ignore_eos)


def test_log_probabilities_are_the_models(constrained: httpx.Client) -> None:
    free = {"prompt": "abc", "n_predict": 1, "n_probs": 3, "temperature": 0}
    bound = constrained.post("/completion", json=free | {"grammar": 'root ::= "0"'}).json()["completion_probabilities"]
    top = constrained.post("/completion", json=free).json()["completion_probabilities"][0]["top_logprobs"]
    assert bound[0]["top_logprobs"] == top
    assert bound[0]["token"] == "0"
    assert bound[0]["logprob"] < top[0]["logprob"]
    after = constrained.post("/completion", json=free | {"grammar": 'root ::= "0"', "post_sampling_probs": True}).json()
    assert after["completion_probabilities"][0]["top_probs"][0]["prob"] == pytest.approx(1)


LAZY: dict[str, object] = {
    "prompt": "abc",
    "grammar": 'root ::= "e" [0-9]{3} "!"',
    "grammar_lazy": True,
    "grammar_triggers": [{"type": "word", "value": "e"}],
    "n_predict": 200,
}


def test_a_lazy_grammar_holds_from_its_trigger_on(constrained: httpx.Client) -> None:
    logit_bias = [[chr(letter), 5] for letter in range(ord("a"), ord("f"))]
    answer = constrained.post("/completion", json=LAZY | {"seed": 1, "logit_bias": logit_bias}).json()
    assert re.fullmatch("[^e]+e[0-9]{3}!", answer["content"], re.DOTALL)
    settings = answer["generation_settings"]
    assert (settings["grammar_lazy"], settings["grammar_triggers"]) == (True, LAZY["grammar_triggers"])


@pytest.mark.parametrize(
    "trigger", [{"type": 2, "value": "[a-d](e)"}, {"type": "pattern_full", "value": r"[^e]*[a-d](e)"}]
)
def test_a_lazy_grammar_holds_from_the_group_of_a_pattern_on(
    constrained: httpx.Client, trigger: dict[str, object]
) -> None:
    logit_bias = [[chr(letter), 5] for letter in range(ord("a"), ord("f"))]
    body = LAZY | {"grammar_triggers": [trigger], "logit_bias": logit_bias, "seed": 2}
    answer = constrained.post("/completion", json=body).json()
    assert re.fullmatch("([^e]|e(?![0-9]{3}!$))*[a-d]e[0-9]{3}!", answer["content"], re.DOTALL)
    assert answer["stop_type"] == "eos"


@pytest.mark.parametrize("stream", [False, True])
def test_what_a_pattern_begins_and_the_grammar_refuses_ends_the_request(
    constrained: httpx.Client, stream: bool
) -> None:
    body = LAZY | {"grammar_triggers": [{"type": 2, "value": "[^e]"}], "stream": stream}
    response = constrained.post("/completion", json=body)
    error = list(frames(response))[-1]["error"] if stream else response.json()["error"]
    assert (response.status_code, error["code"]) == (200 if stream else 400, 400)
    assert error["message"].startswith("the constraint refuses '")


def test_a_token_can_be_a_trigger_and_shown(constrained: httpx.Client) -> None:
    body = LAZY | {
        "grammar": 'root ::= "<|turn|>" [0-9]{3}',
        "grammar_triggers": [{"type": 1, "value": "<|turn|>"}],
        "preserved_tokens": ["<|turn|>"],
        "logit_bias": [[TURN, 15]],
    }
    answer = constrained.post("/completion", json=body).json()
    assert re.fullmatch(r".*<\|turn\|>[0-9]{3}", answer["content"], re.DOTALL)
    assert answer["generation_settings"]["preserved_tokens"] == [TURN]


@pytest.mark.parametrize("stream", [False, True])
def test_a_constraint_that_leaves_no_token_is_the_requests_own_fault(constrained: httpx.Client, stream: bool) -> None:
    body = {"prompt": "a", "grammar": 'root ::= "x"', "logit_bias": [["x", False]], "n_predict": 5, "stream": stream}
    response = constrained.post("/completion", json=body)
    error = json.loads(response.text.removeprefix("data: "))["error"]
    assert error["message"] == "logit_bias and the constraint forbid every token"
    assert (error["code"], error["type"]) == (400, "invalid_request_error")
