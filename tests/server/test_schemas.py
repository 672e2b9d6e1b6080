"""Bodies of requests: types, bounds, null, aliases, and what is said about a bad value."""

import logging

import pytest

from server.errors import BodyInvalid, FieldInvalid
from server.fields import MAX_STOP_CHARACTERS, MAX_STOP_STRINGS
from server.messages.schema import MessagesBody
from server.schemas import ChatBody, ChatFields, CompletionBody, GenerationBody, UnknownFields, parse


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"n_predict": "5"}, "Field 'n_predict': type must be number, but is string"),
        ({"n_predict": True}, "Field 'n_predict': type must be number, but is boolean"),
        ({"n_predict": -5}, "Field 'n_predict': Value must be between -1 <= value <= 2147483647, but got -5"),
        (
            {"max_tokens": 2**31},
            "Field 'max_tokens': Value must be between -1 <= value <= 2147483647, but got 2147483648",
        ),
        ({"max_tokens": 1.5}, "Field 'max_tokens': must be a whole number, but got 1.5"),
        ({"n": 0}, "Field 'n': Value must be between 1 <= value <= 2147483647, but got 0"),
        ({"stream": 1}, "Field 'stream': type must be boolean, but is number"),
        ({"stream_options": []}, "Field 'stream_options': type must be object, but is array"),
        (
            {"stream_options": {"include_usage": "yes"}},
            "Field 'stream_options.include_usage': type must be boolean, but is string",
        ),
        ({"temperature": []}, "Field 'temperature': type must be number, but is array"),
        ({"temperature": float("nan")}, "Field 'temperature': must be a finite number, but got nan"),
        ({"temperature": float("inf")}, "Field 'temperature': must be a finite number, but got inf"),
        ({"temperature": 10**400}, "Field 'temperature': must be a number that float64 can hold"),
        ({"top_p": 1.5}, "Field 'top_p': Value must be between 0 <= value <= 1, but got 1.5"),
        ({"repeat_last_n": -2}, "Field 'repeat_last_n': Value must be between -1 <= value <= 2147483647, but got -2"),
        ({"repeat_penalty": 0}, "Field 'repeat_penalty': Value must be between 1e-06 <= value <= 1000000.0, but got 0"),
        (
            {"presence_penalty": -1e9},
            "Field 'presence_penalty': Value must be between -1000000.0 <= value <= 1000000.0, but got -1000000000.0",
        ),
        ({"stop": 5}, "Field 'stop': must be a string or an array of strings, but is number"),
        ({"stop": ["a", 5]}, "Field 'stop': must be a string or an array of strings, but is array"),
        ({"model": 5}, "Field 'model': type must be string, but is number"),
        ({"n_probs": 5000}, "Field 'n_probs': Value must be between 0 <= value <= 1000, but got 5000"),
        ({"logprobs": True}, "Field 'logprobs': type must be number, but is boolean"),
    ],
)
def test_a_bad_value_is_named(body: dict[str, object], message: str) -> None:
    with pytest.raises(FieldInvalid) as error:
        parse(CompletionBody, body)
    assert str(error.value) == message


@pytest.mark.parametrize("body", [None, [], "x", 5, True])
def test_a_body_must_be_an_object(body: object) -> None:
    with pytest.raises(BodyInvalid):
        parse(CompletionBody, body)


def test_null_is_absent_everywhere() -> None:
    names = [*CompletionBody.model_fields, "max_tokens", "stop", "tools", "grammar", "mirostat"]
    body = dict.fromkeys(names) | {"stream_options": {"include_usage": None}}
    assert parse(CompletionBody, body) == parse(CompletionBody, {})


@pytest.mark.parametrize(
    ("body", "n_predict"),
    [
        ({"max_tokens": 1}, 1),
        ({"max_tokens": 1, "max_completion_tokens": 2}, 2),
        ({"max_tokens": 1, "max_completion_tokens": 2, "n_predict": 3}, 3),
        ({"max_tokens": 1, "n_predict": None}, 1),
        ({"max_tokens": 5.0}, 5),
        ({}, None),
    ],
)
def test_the_limit_has_three_names_in_order(body: dict[str, object], n_predict: int | None) -> None:
    assert parse(CompletionBody, body).n_predict == n_predict


def test_a_stop_string_may_stand_alone() -> None:
    assert parse(CompletionBody, {"stop": "x"}).stop == ("x",)
    assert parse(CompletionBody, {"stop": ["x", "y"]}).stop == ("x", "y")


@pytest.mark.parametrize(
    ("schema", "field"), [(CompletionBody, "stop"), (ChatBody, "stop"), (MessagesBody, "stop_sequences")]
)
def test_stop_strings_are_bounded(schema: type[GenerationBody], field: str) -> None:
    most, longest = ["x"] * MAX_STOP_STRINGS, ["x" * (MAX_STOP_CHARACTERS - 1), "y"]
    rest = {"max_tokens": 1}
    assert parse(schema, {field: most, **rest}).stop == tuple(most)
    assert parse(schema, {field: longest, **rest}).stop == tuple(longest)
    with pytest.raises(FieldInvalid, match="must be at most 128 strings, but are 129") as error:
        parse(schema, {field: [*most, "y"], **rest})
    assert error.value.field == field
    with pytest.raises(FieldInvalid, match="must have at most 65536 characters together, but has 65537"):
        parse(schema, {field: [*longest, "z"], **rest})


@pytest.mark.parametrize(
    ("body", "number"),
    [
        ({}, None),
        ({"n_probs": 0}, None),
        ({"n_probs": 3}, 3),
        ({"logprobs": 2}, 2),
        ({"logprobs": 0}, 0),
        ({"n_probs": 1, "logprobs": 2}, 1),
    ],
)
def test_completions_count_their_logprobs(body: dict[str, object], number: int | None) -> None:
    assert parse(CompletionBody, body).num_logprobs == number


@pytest.mark.parametrize(
    ("body", "number"),
    [
        ({}, None),
        ({"logprobs": False}, None),
        ({"logprobs": True}, 20),
        ({"logprobs": True, "top_logprobs": 0}, 0),
        ({"logprobs": True, "top_logprobs": 5}, 5),
    ],
)
def test_chats_ask_for_logprobs_by_a_flag(body: dict[str, object], number: int | None) -> None:
    assert parse(ChatBody, body).num_logprobs == number


def test_top_logprobs_want_logprobs() -> None:
    with pytest.raises(FieldInvalid, match="requires logprobs"):
        _ = parse(ChatBody, {"top_logprobs": 5}).num_logprobs


def test_an_unknown_field_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    unknown = UnknownFields()
    for _ in range(3):
        unknown.note("/completion", {"prompt": "a", "lora_path": "x", "user": "me", "mirostat": 0}, CompletionBody)
    unknown.note("/apply-template", {"messages": [], "frob": 1}, ChatFields)
    assert [record.getMessage() for record in caplog.records] == [
        "/completion: the field 'lora_path' is unknown and ignored",
        "/apply-template: the field 'frob' is unknown and ignored",
    ]


def test_the_log_of_unknown_fields_is_bounded(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    UnknownFields().note("/completion", {f"field{i}": 1 for i in range(1000)}, CompletionBody)
    assert len(caplog.records) == UnknownFields.MAX_SEEN
