"""`litellm` with its providers for OpenAI-compatible servers: `python -m tests.clients.litellm_client URL`."""

import asyncio
import json
import os
import sys

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # else it asks the internet for prices when it is imported

import litellm

from tests.clients.checks import error_of, run_checks

URL = sys.argv[1]
HOW = {"api_base": f"{URL}/v1", "api_key": "none", "max_tokens": 16, "temperature": 0, "max_retries": 0}
MESSAGES = [{"role": "user", "content": "Ahoy, who are you?"}]


def chat_text(model: str, **more: object) -> str:
    """Return a greedy answer."""
    answer = litellm.completion(model=model, messages=MESSAGES, **HOW, **more)
    assert answer.usage.completion_tokens > 0
    return str(answer.choices[0].message.content)


def adapters_are_chosen_by_name_and_by_list() -> None:
    base, pirate = chat_text("openai/smollm2"), chat_text("openai/pirate")
    assert base != pirate
    assert chat_text("openai/smollm2", extra_body={"lora": [{"id": 0, "scale": 1.0}]}) == pirate


def the_providers_for_local_servers_work_too() -> None:
    pirate = chat_text("openai/pirate")
    assert chat_text("hosted_vllm/pirate") == pirate
    assert chat_text("llamafile/pirate") == pirate


def a_chat_is_streamed_with_usage() -> None:
    chunks = list(
        litellm.completion(
            model="openai/pirate", messages=MESSAGES, stream=True, stream_options={"include_usage": True}, **HOW
        )
    )
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == chat_text("openai/pirate")
    assert any(getattr(chunk, "usage", None) for chunk in chunks)


def texts_are_completed() -> None:
    answer = litellm.text_completion(model="text-completion-openai/smollm2", prompt="The capital of France is", **HOW)
    assert "Paris" in answer.choices[0].text


def a_tool_is_called_whole_and_streamed() -> None:
    cities = {"city": {"enum": ["Paris", "Rome"]}}
    weather = {"type": "object", "properties": cities, "required": ["city"]}
    question = {
        "messages": [{"role": "user", "content": "How is the weather in Rome?"}],
        "tools": [{"type": "function", "function": {"name": "get_weather", "parameters": weather}}],
        "tool_choice": "required",
        "parallel_tool_calls": False,
        **HOW,
        "max_tokens": 96,
    }
    whole = litellm.completion(model="openai/smollm2", **question)
    chunks = list(litellm.completion(model="openai/smollm2", stream=True, **question))
    for answer in (whole, litellm.stream_chunk_builder(chunks)):
        assert answer.choices[0].finish_reason == "tool_calls", answer
        [call] = answer.choices[0].message.tool_calls
        assert call.function.name == "get_weather"
        assert json.loads(call.function.arguments)["city"] in ("Paris", "Rome")


def texts_are_embedded_under_an_adapter() -> None:
    how = {"api_base": f"{URL}/v1", "api_key": "none", "input": ["the sea", "a ship"]}
    base, pirate = (litellm.embedding(model=f"openai/{name}", **how).data for name in ("smollm2", "pirate"))
    assert [each["index"] for each in base] == [0, 1]
    assert base[0]["embedding"] != base[1]["embedding"]
    assert base[0]["embedding"] != pirate[0]["embedding"]


def the_other_dialects_give_the_same() -> None:
    pirate = chat_text("openai/pirate")
    response = litellm.responses(
        model="openai/pirate",
        input=MESSAGES[0]["content"],
        api_base=HOW["api_base"],
        api_key="none",
        max_output_tokens=16,
        temperature=0,
    )
    assert response.output[0].content[0].text == pirate
    asynchronous = asyncio.run(litellm.acompletion(model="openai/pirate", messages=MESSAGES, **HOW))
    assert asynchronous.choices[0].message.content == pirate
    how = HOW | {"api_base": URL}
    message = litellm.completion(model="anthropic/pirate", messages=MESSAGES, **how)
    assert message.choices[0].message.content == pirate


def bad_requests_are_the_clients_own_errors() -> None:
    unknown = {"lora": [{"id": 7, "scale": 1}]}
    assert "lora" in error_of(litellm.BadRequestError, lambda: chat_text("openai/smollm2", extra_body=unknown))


if __name__ == "__main__":
    run_checks(
        "litellm",
        adapters_are_chosen_by_name_and_by_list,
        the_providers_for_local_servers_work_too,
        a_chat_is_streamed_with_usage,
        texts_are_completed,
        a_tool_is_called_whole_and_streamed,
        texts_are_embedded_under_an_adapter,
        the_other_dialects_give_the_same,
        bad_requests_are_the_clients_own_errors,
    )
