"""llama-server's native routes over real HTTP."""

import json
from dataclasses import replace

import httpx
import pytest

from model.tokens.tokenizer import Tokenizer
from tests.server import fakes
from tests.server.fakes import (
    BOS,
    EOS,
    TURN,
    VOCAB_SIZE,
    FakeExecutor,
    alphabet,
    byte_tokenizer,
    current_key,
    fake_engine,
    says,
)
from tests.server.live import LiveServer, frames

FINAL_KEYS = [
    "index",
    "content",
    "tokens",
    "id_slot",
    "stop",
    "model",
    "tokens_predicted",
    "tokens_evaluated",
    "generation_settings",
    "prompt",
    "has_new_line",
    "truncated",
    "stop_type",
    "stopping_word",
    "tokens_cached",
    "timings",
]


SETTINGS_AFTER_THE_SAMPLERS = [
    *("stop", "max_tokens", "n_predict", "ignore_eos", "stream", "logit_bias", "n_probs", "min_keep", "grammar"),
    *("grammar_lazy", "grammar_triggers", "preserved_tokens", "samplers", "timings_per_token", "post_sampling_probs"),
    "lora",
]


def expected(server: LiveServer, length: int) -> str:
    """What the model says under the server's current scales."""
    return alphabet(current_key(server.engine), length)


@pytest.mark.parametrize("path", ["/completion", "/completions"])
def test_a_completion_has_llama_servers_keys_in_its_order(client: httpx.Client, server: LiveServer, path: str) -> None:
    response = client.post(path, json={"prompt": "ab", "n_predict": 4})
    result = response.json()
    assert response.headers["content-type"] == "application/json; charset=utf-8"
    assert list(result) == FINAL_KEYS
    assert result["content"] == expected(server, 4)
    assert (result["index"], result["tokens"], result["stop"], result["model"]) == (0, [], True, "fake")
    assert (result["tokens_predicted"], result["tokens_evaluated"], result["tokens_cached"]) == (4, 3, 6)
    assert (result["stop_type"], result["stopping_word"], result["prompt"]) == ("limit", "", "<s>ab")


def test_generation_settings_come_in_llama_servers_order(client: httpx.Client) -> None:
    settings = client.post("/completion", json={"prompt": "ab", "n_predict": 1}).json()["generation_settings"]

    assert [name for name in settings if name in SETTINGS_AFTER_THE_SAMPLERS] == SETTINGS_AFTER_THE_SAMPLERS


def test_a_stream_has_one_frame_for_each_token_and_no_done(client: httpx.Client, server: LiveServer) -> None:
    with client.stream("POST", "/completion", json={"prompt": "ab", "n_predict": 3, "stream": True}) as response:
        assert response.headers["content-type"] == "text/event-stream"
        assert response.headers["x-accel-buffering"] == "no"
        lines = list(response.iter_lines())
    *partials, final = [json.loads(line.removeprefix("data: ")) for line in lines if line]
    assert lines[1::2] == [""] * len(lines[1::2])
    assert not any("[DONE]" in line for line in lines)
    assert [list(frame) for frame in partials] == [
        ["index", "content", "tokens", "stop", "id_slot", "tokens_predicted", "tokens_evaluated"]
    ] * 3
    assert "".join(str(frame["content"]) for frame in partials) == expected(server, 3)
    assert [frame["tokens"] for frame in partials] == [[ord(character)] for character in expected(server, 3)]
    assert [frame["tokens_predicted"] for frame in partials] == [1, 2, 3]
    assert list(final) == FINAL_KEYS
    assert (final["content"], final["tokens"], final["stop"], final["tokens_predicted"]) == ("", [], True, 3)


def test_streamed_and_whole_text_are_equal(client: httpx.Client) -> None:
    whole = client.post("/completion", json={"prompt": "ab", "n_predict": 7}).json()
    with client.stream("POST", "/completion", json={"prompt": "ab", "n_predict": 7, "stream": True}) as response:
        *partials, final = frames(response)
    assert "".join(str(frame["content"]) for frame in partials) == whole["content"]
    for key in ("tokens_predicted", "tokens_evaluated", "stop_type", "prompt", "tokens_cached"):
        assert final[key] == whole[key]


def test_zero_tokens_still_yield_one(client: httpx.Client) -> None:
    assert client.post("/completion", json={"prompt": "ab", "n_predict": 0}).json()["tokens_predicted"] == 1


def test_the_limit_of_the_server_holds_where_the_request_has_none(client: httpx.Client) -> None:
    assert client.post("/completion", json={"prompt": "ab"}).json()["tokens_predicted"] == 8


def test_the_context_ends_a_request_without_a_limit(client: httpx.Client) -> None:
    result = client.post("/completion", json={"prompt": "x" * 249, "n_predict": -1}).json()
    assert (result["stop_type"], result["tokens_evaluated"], result["tokens_predicted"]) == ("limit", 250, 6)


def test_tokens_are_returned_where_asked_for(client: httpx.Client, server: LiveServer) -> None:
    result = client.post("/completion", json={"prompt": "ab", "n_predict": 2, "return_tokens": True}).json()
    assert bytes(result["tokens"]).decode() == expected(server, 2)


def test_generation_settings_tell_what_was_used(client: httpx.Client) -> None:
    body = {
        "prompt": "ab",
        "n_predict": 2,
        "temperature": -3,
        "top_k": 7,
        "seed": 42,
        "repetition_penalty": 1.25,
        "stop": ["zz"],
        "lora": [{"id": 1, "scale": 0.3}],
        "logit_bias": [[65, False], ["B", 1.5]],
    }
    settings = client.post("/completion", json=body).json()["generation_settings"]
    assert (settings["temperature"], settings["top_k"], settings["seed"]) == (0.0, 7, 42)
    assert (settings["repeat_penalty"], settings["stop"], settings["n_predict"]) == (1.25, ["zz"], 2)
    assert settings["lora"] == [
        {"id": 0, "name": "adapter0", "scale": 0.0},
        {"id": 1, "name": "adapter1", "scale": 0.3},
    ]
    assert settings["logit_bias"] == [{"bias": None, "token": 65}, {"bias": 1.5, "token": 66}]


def test_a_random_seed_is_told(client: httpx.Client) -> None:
    body = {"prompt": "ab", "n_predict": 1, "seed": -1}
    seeds = {client.post("/completion", json=body).json()["generation_settings"]["seed"] for _ in range(3)}
    assert len(seeds) == 3


def test_several_prompts_are_answered_as_an_array(client: httpx.Client) -> None:
    prompts: list[object] = ["a", [98, 99], ["d", 101], {"prompt_string": "f"}]
    results = client.post("/completion", json={"prompt": prompts, "n_predict": 1}).json()
    assert [result["index"] for result in results] == [0, 1, 2, 3]
    assert [result["prompt"] for result in results] == ["<s>a", "bc", "<s>de", "<s>f"]


def test_choices_follow_their_prompt(client: httpx.Client) -> None:
    body = {"prompt": ["a", "b"], "n": 2, "n_predict": 1, "seed": 5}
    results = client.post("/completion", json=body).json()
    assert [result["prompt"] for result in results] == ["<s>a", "<s>a", "<s>b", "<s>b"]
    assert [result["generation_settings"]["seed"] for result in results] == [5, 6, 5, 6]


def test_one_prompt_in_a_list_is_answered_as_an_object(client: httpx.Client) -> None:
    assert client.post("/completion", json={"prompt": ["ab"], "n_predict": 1}).json()["content"]


def test_only_the_fields_asked_for_are_returned(client: httpx.Client, server: LiveServer) -> None:
    body = {"prompt": "ab", "n_predict": 2, "response_fields": ["content", "generation_settings/n_predict", "no/such"]}
    result = client.post("/completion", json=body).json()
    assert result == {"content": expected(server, 2), "generation_settings/n_predict": 2}


def test_probabilities_name_token_bytes_and_alternatives(client: httpx.Client, server: LiveServer) -> None:
    result = client.post("/completion", json={"prompt": "ab", "n_predict": 2, "n_probs": 3}).json()
    first, _ = result["completion_probabilities"]
    said = ord(expected(server, 1))
    assert list(first) == ["id", "token", "bytes", "logprob", "top_logprobs"]
    assert (first["id"], first["token"], first["bytes"], first["logprob"]) == (said, chr(said), [said], -0.25)
    assert [item["id"] for item in first["top_logprobs"]] == [said, BOS, EOS]
    assert first["top_logprobs"][2]["logprob"] == -3.4e38


def test_probabilities_are_streamed_with_their_tokens(client: httpx.Client) -> None:
    body = {"prompt": "ab", "n_predict": 2, "n_probs": 1, "stream": True, "timings_per_token": True}
    with client.stream("POST", "/completion", json=body) as response:
        *partials, final = frames(response)
    for frame in partials:
        [probability] = frame["completion_probabilities"]
        assert [probability["id"]] == frame["tokens"]
        assert "timings" in frame
    assert "completion_probabilities" not in final


def test_timings_count_cached_and_computed_tokens(client: httpx.Client) -> None:
    body = {"prompt": "the same prompt of more than two blocks of tokens", "n_predict": 3}
    client.post("/completion", json=body)
    timings = client.post("/completion", json=body).json()["timings"]
    assert list(timings) == [
        "cache_n",
        "prompt_n",
        "prompt_ms",
        "prompt_per_token_ms",
        "prompt_per_second",
        "predicted_n",
        "predicted_ms",
        "predicted_per_token_ms",
        "predicted_per_second",
    ]
    assert (timings["cache_n"], timings["prompt_n"], timings["predicted_n"]) == (48, 2, 3)
    body["cache_prompt"] = False
    assert client.post("/completion", json=body).json()["timings"]["cache_n"] == 0


def test_an_end_token_ends_the_answer_and_is_counted() -> None:
    with (
        LiveServer(lambda settings: fake_engine(FakeExecutor(says("hi\n")), settings)) as server,
        server.client() as client,
    ):
        result = client.post("/completion", json={"prompt": "ab", "return_tokens": True}).json()
        assert (result["content"], result["stop_type"], result["has_new_line"]) == ("hi\n", "eos", True)
        assert result["tokens"] == [*b"hi\n", EOS]
        with client.stream("POST", "/completion", json={"prompt": "ab", "stream": True}) as response:
            *partials, _ = frames(response)
        assert [frame["tokens"] for frame in partials] == [[104], [105], [10], [EOS]]

        ignored = client.post("/completion", json={"prompt": "ab", "n_predict": 6, "ignore_eos": True}).json()
        assert (ignored["stop_type"], ignored["tokens_predicted"]) == ("limit", 6)
        assert {"bias": None, "token": EOS} in ignored["generation_settings"]["logit_bias"]


def test_tokenize_turns_text_and_mixed_lists_into_tokens(client: httpx.Client) -> None:
    assert client.post("/tokenize", json={"content": "ab"}).json() == {"tokens": [97, 98]}
    assert client.post("/tokenize", json={"content": "ab", "add_special": True}).json() == {"tokens": [BOS, 97, 98]}
    assert client.post("/tokenize", json={"content": "<|turn|>"}).json() == {"tokens": [TURN]}
    plain = client.post("/tokenize", json={"content": "<|turn|>", "parse_special": False}).json()
    assert plain == {"tokens": list(b"<|turn|>")}
    assert client.post("/tokenize", json={"content": ["a", 98, "c"]}).json() == {"tokens": [97, 98, 99]}
    assert client.post("/tokenize", json={}).json() == {"tokens": []}
    assert client.post("/tokenize", json={"prompt": "a", "add_special_tokens": False}).json() == {"tokens": [97]}


def test_tokenize_shows_pieces_as_text_or_bytes(client: httpx.Client) -> None:
    tokens = client.post("/tokenize", json={"content": "aé", "with_pieces": True}).json()["tokens"]
    assert tokens == [{"id": 97, "piece": "a"}, {"id": 195, "piece": [195]}, {"id": 169, "piece": [169]}]


def test_detokenize_gives_the_text_back(client: httpx.Client) -> None:
    response = client.post("/detokenize", json={"tokens": [BOS, 195, 169, 33]})
    assert response.json() == {"content": "<s>é!", "prompt": "<s>é!"}


@pytest.mark.parametrize("bad", [259, -1, "a", True, 1.5])
def test_detokenize_refuses_what_is_no_token(client: httpx.Client, bad: object) -> None:
    response = client.post("/detokenize", json={"tokens": [1, bad]})
    assert response.status_code == 400
    assert "Field 'tokens[1]'" in response.json()["error"]["message"]


def test_apply_template_renders_the_prompt_of_a_chat(client: httpx.Client) -> None:
    body = {"messages": [{"role": "user", "content": "hi"}], "chat_template_kwargs": {"shout": True}}
    assert client.post("/apply-template", json=body).json() == {"prompt": "<user>hi\n<assistant>!"}


def test_texts_end_with_eos_where_the_model_adds_it(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = Tokenizer(replace(byte_tokenizer().vocabulary, adds_eos=True), VOCAB_SIZE)
    monkeypatch.setattr(fakes, "byte_tokenizer", lambda *_: tokenizer)
    executor = FakeExecutor()
    with LiveServer(lambda settings: fake_engine(executor, settings)) as server, server.client() as client:

        def tokens(content: object, **fields: object) -> list[int]:
            ids: list[int] = client.post("/tokenize", json={"content": content} | fields).json()["tokens"]
            return ids

        assert tokens("ab", add_special=True) == [BOS, 97, 98, EOS]
        assert tokens("ab</s>", add_special=True) == [BOS, 97, 98, EOS]
        assert tokens("ab") == [97, 98]
        assert tokens(["a", 98], add_special=True) == [BOS, 97, 98]
        assert tokens([97, "b"], add_special=True) == [97, 98, EOS]
        for path, body in (
            ("/completion", {"prompt": "ab"}),
            ("/embedding", {"content": "ab"}),
            ("/v1/embeddings", {"input": "ab"}),
        ):
            executor.batches.clear()
            assert client.post(path, json=body | {"cache_prompt": False}).status_code == 200
            assert executor.batches[0].rows[0].token_ids == (BOS, 97, 98, EOS)
