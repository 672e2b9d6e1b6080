"""OpenAI's Agents SDK, over chat completions and responses: `python -m tests.clients.agents_client URL`."""

import asyncio
import sys
from collections.abc import Mapping
from functools import partial
from typing import Any, Literal

import openai
from agents import (
    Agent,
    MaxTurnsExceeded,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from pydantic import BaseModel

from tests.clients.checks import error_of, run_checks

URL = sys.argv[1]
CLIENT = openai.AsyncOpenAI(base_url=f"{URL}/v1", api_key="none", max_retries=0, timeout=300)
KINDS = (OpenAIChatCompletionsModel, OpenAIResponsesModel)
RUNNER = asyncio.Runner()
"""One event loop for all runs, which keeps the client's connections."""
ONE_CALL: Mapping[str, Any] = {"tool_choice": "required", "parallel_tool_calls": False}
PROMPT = "How is the weather in Rome?"


class Weather(BaseModel):
    """What an agent ends with."""

    sky: Literal["blue", "grey"]


@function_tool  # type: ignore[untyped-decorator]
def get_weather(city: Literal["Paris", "Rome"]) -> str:
    """Tell how the weather is in a city."""
    return f"It rains in {city}."


def agent(kind: Any, name: str = "smollm2", *, settings: Mapping[str, Any] | None = None, **parts: Any) -> Agent:
    """Return a greedy agent. The limit is far: over responses, an answer that is cut off is an error to the SDK."""
    return Agent(
        name="sailor",
        instructions="Be short.",
        model=kind(model=name, openai_client=CLIENT),
        model_settings=ModelSettings(temperature=0, max_tokens=256, **(settings or {})),
        **parts,
    )


def run(asked: Agent, *, is_streamed: bool = False) -> Any:
    """Return what a run ends with."""

    async def result() -> Any:
        if not is_streamed:
            return await Runner.run(asked, PROMPT, max_turns=3)
        running = Runner.run_streamed(asked, PROMPT, max_turns=3)
        async for _ in running.stream_events():
            pass
        return running

    return RUNNER.run(result()).final_output


def adapters_are_chosen_by_name_and_by_list() -> None:
    for kind in KINDS:
        emoji, pirate = run(agent(kind, "emoji")), run(agent(kind, "pirate"))
        assert emoji != pirate
        assert run(agent(kind, settings={"extra_body": {"lora": [{"id": 0, "scale": 1.0}]}})) == pirate
        assert run(agent(kind, "pirate"), is_streamed=True) == pirate


def an_agent_ends_with_an_object() -> None:
    for kind in KINDS:
        asked = agent(kind, output_type=Weather)
        assert isinstance(run(asked), Weather)
        assert isinstance(run(asked, is_streamed=True), Weather)


def tools_are_called() -> None:
    for kind in KINDS:
        asked = agent(kind, settings=ONE_CALL, tools=[get_weather], tool_use_behavior="stop_on_first_tool")
        for is_streamed in (False, True):
            assert run(asked, is_streamed=is_streamed) in ("It rains in Rome.", "It rains in Paris.")


def tools_and_an_object_may_be_asked_for_at_once() -> None:
    # The first turn must call; in later ones the model may call or answer with the object, and a small one goes on.
    for kind in KINDS:
        asked = agent(kind, settings=ONE_CALL, tools=[get_weather], output_type=Weather)
        try:
            assert isinstance(run(asked), Weather)
        except MaxTurnsExceeded:
            print("the model never stopped calling")


def agents_hand_over() -> None:
    for kind in KINDS:
        assert run(agent(kind, settings=ONE_CALL, handoffs=[agent(kind, "pirate")]))


def bad_requests_are_the_clients_own_errors() -> None:
    for kind in KINDS:
        asked = agent(kind, settings={"extra_body": {"lora": [{"id": 7, "scale": 1}]}})
        assert "lora" in error_of(openai.BadRequestError, partial(run, asked))


if __name__ == "__main__":
    set_tracing_disabled(True)
    run_checks(
        "openai-agents",
        adapters_are_chosen_by_name_and_by_list,
        an_agent_ends_with_an_object,
        tools_are_called,
        tools_and_an_object_may_be_asked_for_at_once,
        agents_hand_over,
        bad_requests_are_the_clients_own_errors,
    )
