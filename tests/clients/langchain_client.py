"""LangChain's ChatOpenAI: `python -m tests.clients.langchain_client URL`."""

import sys

import openai
from langchain_openai import ChatOpenAI

from tests.clients.checks import error_of, run_checks

URL = sys.argv[1]
PROMPT = "Ahoy, who are you?"


def chat(model: str, **more: object) -> ChatOpenAI:
    """Return a greedy model."""
    how = {"base_url": f"{URL}/v1", "api_key": "none", "max_tokens": 16, "temperature": 0, "max_retries": 0}
    return ChatOpenAI(model=model, **how, **more)


def adapters_are_chosen_by_name_and_by_list() -> None:
    base, pirate = (str(chat(name).invoke(PROMPT).content) for name in ("smollm2", "pirate"))
    assert base != pirate
    mixed = chat("smollm2", extra_body={"lora": [{"id": 0, "scale": 1.0}]}).invoke(PROMPT)
    assert mixed.content == pirate


def usage_is_read() -> None:
    usage = chat("smollm2").invoke(PROMPT).usage_metadata
    assert usage is not None
    assert usage["output_tokens"] > 0


def a_chat_is_streamed_with_usage() -> None:
    chunks = list(chat("pirate", stream_usage=True).stream(PROMPT))
    assert "".join(str(chunk.content) for chunk in chunks) == chat("pirate").invoke(PROMPT).content
    assert any(chunk.usage_metadata for chunk in chunks)


def an_answer_has_the_form_of_a_schema() -> None:
    schema = {
        "title": "sky",
        "description": "The sky.",
        "type": "object",
        "properties": {"colour": {"type": "string", "enum": ["blue", "green"]}},
        "required": ["colour"],
        "additionalProperties": False,
    }
    answer = chat("smollm2").with_structured_output(schema, method="json_schema").invoke("Which colour is the sky?")
    assert isinstance(answer, dict)
    assert answer["colour"] in ("blue", "green")


def a_tool_is_called() -> None:
    def get_weather(city: str) -> str:
        """Tell how the weather is in a city."""
        return city

    model = chat("smollm2").bind_tools([get_weather], tool_choice="required").bind(max_tokens=96)
    calls = model.invoke("How is the weather in Rome?").tool_calls
    assert {call["name"] for call in calls} == {"get_weather"}
    assert all(isinstance(call["args"]["city"], str) for call in calls)


def bad_requests_are_the_clients_own_errors() -> None:
    unknown = chat("smollm2", extra_body={"lora": [{"id": 7, "scale": 1}]})
    assert "lora" in error_of(openai.BadRequestError, lambda: unknown.invoke(PROMPT))


if __name__ == "__main__":
    run_checks(
        "langchain-openai",
        adapters_are_chosen_by_name_and_by_list,
        usage_is_read,
        a_chat_is_streamed_with_usage,
        an_answer_has_the_form_of_a_schema,
        a_tool_is_called,
        bad_requests_are_the_clients_own_errors,
    )
