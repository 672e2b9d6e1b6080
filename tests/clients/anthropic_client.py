"""The `anthropic` client: `python -m tests.clients.anthropic_client URL`."""

import asyncio
import sys

import anthropic

from tests.clients.checks import error_of, run_checks

URL = sys.argv[1]
CLIENT = anthropic.Anthropic(base_url=URL, api_key="none", max_retries=0, timeout=300)
MESSAGES: list[anthropic.types.MessageParam] = [{"role": "user", "content": "Ahoy, who are you?"}]
GREEDY: dict[str, object] = {"temperature": 0}
"""In the extra body: newer clients have no argument for it."""


def message_text(model: str, lora: list[dict[str, object]] | None = None) -> str:
    """Return a greedy answer."""
    answer = CLIENT.messages.create(
        model=model,
        messages=MESSAGES,
        max_tokens=16,
        extra_body=GREEDY if lora is None else GREEDY | {"lora": lora},
    )
    assert answer.stop_reason in ("end_turn", "max_tokens")
    assert answer.usage.output_tokens > 0
    [block] = answer.content
    assert block.type == "text"
    return block.text


def adapters_are_chosen_by_name_and_by_list() -> None:
    base, pirate = message_text("smollm2"), message_text("pirate")
    assert base != pirate
    assert message_text("smollm2", [{"id": 0, "scale": 1.0}]) == pirate


def messages_are_streamed() -> None:
    with CLIENT.messages.stream(model="pirate", messages=MESSAGES, max_tokens=16, extra_body=GREEDY) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == stream.get_final_text() == message_text("pirate")
    assert final.usage.output_tokens > 0
    assert final.stop_reason in ("end_turn", "max_tokens")


def tokens_are_counted() -> None:
    assert CLIENT.messages.count_tokens(model="smollm2", messages=MESSAGES).input_tokens > 5


def a_system_prompt_is_taken() -> None:
    answer = CLIENT.messages.create(model="smollm2", system="Answer in one word.", messages=MESSAGES, max_tokens=8)
    assert answer.content


TOOLS: list[anthropic.types.ToolParam] = [
    {
        "name": "get_weather",
        "description": "Tells it.",
        "input_schema": {"type": "object", "properties": {"city": {"enum": ["Paris", "Rome"]}}, "required": ["city"]},
    }
]
WEATHER: list[anthropic.types.MessageParam] = [{"role": "user", "content": "How is the weather in Rome?"}]
ONE_CALL: anthropic.types.ToolChoiceAnyParam = {"type": "any", "disable_parallel_tool_use": True}


def called(message: anthropic.types.Message) -> anthropic.types.ToolUseBlock:
    """Return the one call in an answer."""
    assert message.stop_reason == "tool_use", message
    [call] = [block for block in message.content if block.type == "tool_use"]
    return call


def a_tool_is_called_whole_and_streamed() -> None:
    answer = CLIENT.messages.create(
        model="smollm2", messages=WEATHER, max_tokens=96, extra_body=GREEDY, tools=TOOLS, tool_choice=ONE_CALL
    )
    call = called(answer)
    assert call.name == "get_weather"
    assert call.input in ({"city": "Paris"}, {"city": "Rome"})
    with CLIENT.messages.stream(
        model="smollm2", messages=WEATHER, max_tokens=96, extra_body=GREEDY, tools=TOOLS, tool_choice=ONE_CALL
    ) as stream:
        pieces = [event.partial_json for event in stream if event.type == "input_json"]
        final = called(stream.get_final_message())
    assert pieces
    assert final.input == call.input


def the_result_of_a_tool_is_answered() -> None:
    call: anthropic.types.ToolUseBlockParam = {
        "type": "tool_use",
        "id": "call_1",
        "name": "get_weather",
        "input": {"city": "Rome"},
    }
    result: anthropic.types.ToolResultBlockParam = {"type": "tool_result", "tool_use_id": "call_1", "content": "Rain."}
    answer = CLIENT.messages.create(
        model="smollm2",
        messages=[*WEATHER, {"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}],
        max_tokens=16,
        tools=TOOLS,
    )
    assert answer.content


def the_asynchronous_client_gets_the_same() -> None:
    async def answers() -> list[str]:
        async with anthropic.AsyncAnthropic(base_url=URL, api_key="none", max_retries=0, timeout=300) as client:
            return list(await asyncio.gather(text(client, "smollm2"), text(client, "pirate")))

    async def text(client: anthropic.AsyncAnthropic, model: str) -> str:
        async with client.messages.stream(model=model, messages=MESSAGES, max_tokens=16, extra_body=GREEDY) as stream:
            return "".join([piece async for piece in stream.text_stream])

    assert asyncio.run(answers()) == [message_text("smollm2"), message_text("pirate")]


def bad_requests_are_the_clients_own_errors() -> None:
    assert "lora" in error_of(anthropic.BadRequestError, lambda: message_text("smollm2", [{"id": 7, "scale": 1}]))


if __name__ == "__main__":
    run_checks(
        "anthropic",
        adapters_are_chosen_by_name_and_by_list,
        messages_are_streamed,
        tokens_are_counted,
        a_system_prompt_is_taken,
        a_tool_is_called_whole_and_streamed,
        the_result_of_a_tool_is_answered,
        the_asynchronous_client_gets_the_same,
        bad_requests_are_the_clients_own_errors,
    )
