"""The `anthropic` client: `python -m tests.clients.anthropic_client URL`."""

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
    assert text == message_text("pirate")
    assert final.usage.output_tokens > 0


def tokens_are_counted() -> None:
    assert CLIENT.messages.count_tokens(model="smollm2", messages=MESSAGES).input_tokens > 5


def a_system_prompt_is_taken() -> None:
    answer = CLIENT.messages.create(model="smollm2", system="Answer in one word.", messages=MESSAGES, max_tokens=8)
    assert answer.content


def a_tool_is_called() -> None:
    answer = CLIENT.messages.create(
        model="smollm2",
        messages=[{"role": "user", "content": "How is the weather in Rome?"}],
        max_tokens=96,
        extra_body=GREEDY,
        tools=[
            {
                "name": "get_weather",
                "description": "Tells it.",
                "input_schema": {
                    "type": "object",
                    "properties": {"city": {"enum": ["Paris", "Rome"]}},
                    "required": ["city"],
                },
            }
        ],
        tool_choice={"type": "any"},
    )
    assert answer.stop_reason == "tool_use", answer
    calls = [block for block in answer.content if block.type == "tool_use"]
    assert {call.name for call in calls} == {"get_weather"}


def bad_requests_are_the_clients_own_errors() -> None:
    assert "lora" in error_of(anthropic.BadRequestError, lambda: message_text("smollm2", [{"id": 7, "scale": 1}]))


if __name__ == "__main__":
    run_checks(
        "anthropic",
        adapters_are_chosen_by_name_and_by_list,
        messages_are_streamed,
        tokens_are_counted,
        a_system_prompt_is_taken,
        a_tool_is_called,
        bad_requests_are_the_clients_own_errors,
    )
