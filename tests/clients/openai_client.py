"""The `openai` client: `python -m tests.clients.openai_client URL`."""

import asyncio
import json
import sys
from typing import Literal

import openai
from pydantic import BaseModel

from tests.clients.checks import error_of, run_checks

URL = sys.argv[1]
CLIENT = openai.OpenAI(base_url=f"{URL}/v1", api_key="none", max_retries=0, timeout=300)
PROMPT = "Ahoy, who are you?"
SKY_PROMPT = "Which colour is the sky? Answer in JSON."


class Sky(BaseModel):
    """What an answer is parsed to."""

    colour: Literal["blue", "green"]


def chat_text(model: str, lora: list[dict[str, object]] | None = None) -> str:
    """Return a greedy answer."""
    answer = CLIENT.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": PROMPT}],
        max_completion_tokens=16,
        temperature=0,
        extra_body=None if lora is None else {"lora": lora},
    )
    assert answer.usage is not None
    assert answer.usage.completion_tokens <= 16
    assert answer.choices[0].finish_reason in ("stop", "length")
    return answer.choices[0].message.content or ""


def models_are_listed() -> None:
    assert [model.id for model in CLIENT.models.list()] == ["smollm2", "pirate", "emoji"]


def adapters_are_chosen_by_name_and_by_list() -> None:
    base, pirate = chat_text("smollm2"), chat_text("pirate")
    assert base
    assert base != pirate
    assert chat_text("smollm2", [{"id": 0, "scale": 1.0}]) == pirate
    assert chat_text("pirate", [{"id": 0, "scale": 0.0}]) == base


def a_chat_is_streamed_with_usage() -> None:
    chunks = list(
        CLIENT.chat.completions.create(
            model="pirate",
            messages=[{"role": "user", "content": PROMPT}],
            max_completion_tokens=16,
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == chat_text("pirate")
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens > 0


def texts_are_completed_with_logprobs() -> None:
    answer = CLIENT.completions.create(model="smollm2", prompt="The capital of France is", max_tokens=4, temperature=0)
    assert "Paris" in answer.choices[0].text
    scored = CLIENT.completions.create(
        model="smollm2", prompt="The capital of France is Paris", max_tokens=0, echo=True, logprobs=1, temperature=0
    )
    assert scored.choices[0].text == "The capital of France is Paris"
    assert scored.choices[0].logprobs is not None
    assert scored.choices[0].logprobs.token_logprobs is not None
    assert scored.choices[0].logprobs.token_logprobs[-1] > -3
    chat = CLIENT.chat.completions.create(
        model="smollm2", messages=[{"role": "user", "content": "Hi"}], max_tokens=3, logprobs=True, top_logprobs=2
    )
    assert chat.choices[0].logprobs is not None
    assert chat.choices[0].logprobs.content is not None
    assert all(len(token.top_logprobs) == 2 for token in chat.choices[0].logprobs.content)


def an_answer_has_the_form_of_a_schema() -> None:
    schema = {
        "type": "object",
        "properties": {"sky": {"enum": ["blue", "green"]}},
        "required": ["sky"],
        "additionalProperties": False,
    }
    answer = CLIENT.chat.completions.create(
        model="smollm2",
        messages=[{"role": "user", "content": SKY_PROMPT}],
        max_tokens=40,
        temperature=0,
        response_format={"type": "json_schema", "json_schema": {"name": "sky", "schema": schema, "strict": True}},
    )
    assert json.loads(answer.choices[0].message.content or "")["sky"] in ("blue", "green")


def a_tool_is_called_whole_and_streamed() -> None:
    cities: dict[str, object] = {"city": {"enum": ["Paris", "Rome"]}}
    weather: dict[str, object] = {"type": "object", "properties": cities, "required": ["city"]}
    tools: list[openai.types.chat.ChatCompletionToolParam] = [
        {"type": "function", "function": {"name": "get_weather", "description": "Tells it.", "parameters": weather}}
    ]
    messages: list[openai.types.chat.ChatCompletionMessageParam] = [
        {"role": "user", "content": "How is the weather in Rome?"}
    ]
    answer = CLIENT.chat.completions.create(
        model="smollm2", messages=messages, tools=tools, tool_choice="required", max_tokens=96, temperature=0
    )
    assert answer.choices[0].finish_reason == "tool_calls", answer
    calls = [call.function for call in answer.choices[0].message.tool_calls or [] if call.type == "function"]
    assert calls
    assert all(json.loads(call.arguments)["city"] in ("Paris", "Rome") for call in calls)
    with CLIENT.chat.completions.stream(
        model="smollm2", messages=messages, tools=tools, tool_choice="required", max_tokens=96, temperature=0
    ) as stream:
        streamed = stream.get_final_completion().choices[0].message.tool_calls or []
    assert [call.function.arguments for call in streamed] == [call.arguments for call in calls]


def responses_are_created_and_streamed() -> None:
    answer = CLIENT.responses.create(model="pirate", input=PROMPT, max_output_tokens=16, temperature=0)
    with CLIENT.responses.stream(model="pirate", input=PROMPT, max_output_tokens=16, temperature=0) as stream:
        text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        final = stream.get_final_response()
    assert answer.output_text == text == final.output_text == chat_text("pirate")
    assert final.usage is not None
    assert final.usage.output_tokens > 0


def answers_are_parsed_to_models() -> None:
    for completions in (CLIENT.chat.completions, CLIENT.beta.chat.completions):
        chat = completions.parse(
            model="smollm2",
            messages=[{"role": "user", "content": SKY_PROMPT}],
            response_format=Sky,
            max_tokens=40,
            temperature=0,
        )
        assert isinstance(chat.choices[0].message.parsed, Sky)
    response = CLIENT.responses.parse(
        model="smollm2", input=SKY_PROMPT, text_format=Sky, max_output_tokens=40, temperature=0
    )
    assert isinstance(response.output_parsed, Sky)


def streams_are_parsed_to_models() -> None:
    with CLIENT.chat.completions.stream(
        model="smollm2",
        messages=[{"role": "user", "content": SKY_PROMPT}],
        response_format=Sky,
        max_tokens=40,
        temperature=0,
    ) as chat:
        kinds = {event.type for event in chat}
        parsed = chat.get_final_completion().choices[0].message.parsed
    assert {"chunk", "content.delta", "content.done"} <= kinds
    assert isinstance(parsed, Sky)
    with CLIENT.responses.stream(
        model="smollm2", input=SKY_PROMPT, text_format=Sky, max_output_tokens=40, temperature=0
    ) as stream:
        assert stream.get_final_response().output_parsed == parsed


def a_function_is_called_in_a_response_and_its_output_is_answered() -> None:
    tool: openai.types.responses.FunctionToolParam = {
        "type": "function",
        "name": "get_weather",
        "description": "Tells it.",
        "strict": True,
        "parameters": {"type": "object", "properties": {"city": {"enum": ["Paris", "Rome"]}}, "required": ["city"]},
    }
    with CLIENT.responses.stream(
        model="smollm2", input="How is the weather in Rome?", tools=[tool], tool_choice="required", temperature=0
    ) as stream:
        pieces = [event.delta for event in stream if event.type == "response.function_call_arguments.delta"]
        calls = [item for item in stream.get_final_response().output if item.type == "function_call"]
    assert "".join(pieces) == "".join(call.arguments for call in calls)
    assert json.loads(calls[0].arguments)["city"] in ("Paris", "Rome")
    answer = CLIENT.responses.create(
        model="smollm2",
        input=[
            {"role": "user", "content": "How is the weather in Rome?"},
            {"type": "function_call", "call_id": "call_1", "name": "get_weather", "arguments": calls[0].arguments},
            {"type": "function_call_output", "call_id": "call_1", "output": "It rains."},
        ],
        max_output_tokens=16,
    )
    assert answer.output_text


def the_asynchronous_client_gets_the_same() -> None:
    async def answers() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{URL}/v1", api_key="none", max_retries=0, timeout=300) as client:
            return list(await asyncio.gather(chat(client, "smollm2"), chat(client, "pirate"), response(client)))

    async def chat(client: openai.AsyncOpenAI, model: str) -> str:
        text = ""
        stream = await client.chat.completions.create(
            model=model,
            messages=[{"role": "user", "content": PROMPT}],
            max_completion_tokens=16,
            temperature=0,
            stream=True,
        )
        async for chunk in stream:
            text += chunk.choices[0].delta.content or ""
        return text

    async def response(client: openai.AsyncOpenAI) -> str:
        async with client.responses.stream(model="pirate", input=PROMPT, max_output_tokens=16, temperature=0) as stream:
            return (await stream.get_final_response()).output_text

    base, pirate = chat_text("smollm2"), chat_text("pirate")
    assert asyncio.run(answers()) == [base, pirate, pirate]


def texts_are_embedded_under_an_adapter() -> None:
    texts = ["the sea", "a ship"]
    base, pirate = (CLIENT.embeddings.create(model=name, input=texts).data for name in ("smollm2", "pirate"))
    assert [one.index for one in base] == [0, 1]
    assert base[0].embedding != base[1].embedding
    assert base[0].embedding != pirate[0].embedding


def bad_requests_are_the_clients_own_errors() -> None:
    unknown: list[dict[str, object]] = [{"id": 7, "scale": 1}]
    assert "lora" in error_of(openai.BadRequestError, lambda: chat_text("smollm2", unknown))
    no_number: list[dict[str, object]] = [{"id": 0, "scale": "much"}]
    assert "much" in error_of(openai.BadRequestError, lambda: chat_text("smollm2", no_number))


if __name__ == "__main__":
    run_checks(
        "openai",
        models_are_listed,
        adapters_are_chosen_by_name_and_by_list,
        a_chat_is_streamed_with_usage,
        texts_are_completed_with_logprobs,
        an_answer_has_the_form_of_a_schema,
        a_tool_is_called_whole_and_streamed,
        responses_are_created_and_streamed,
        answers_are_parsed_to_models,
        streams_are_parsed_to_models,
        a_function_is_called_in_a_response_and_its_output_is_answered,
        the_asynchronous_client_gets_the_same,
        texts_are_embedded_under_an_adapter,
        bad_requests_are_the_clients_own_errors,
    )
