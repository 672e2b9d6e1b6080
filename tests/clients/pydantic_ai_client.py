"""Pydantic AI over chat completions, responses and embeddings: `python -m tests.clients.pydantic_ai_client URL`."""

import asyncio
import sys
from typing import Any, Literal

from pydantic import BaseModel
from pydantic_ai import Agent, Embedder, ModelHTTPError, NativeOutput, UsageLimits
from pydantic_ai.embeddings.openai import OpenAIEmbeddingModel
from pydantic_ai.exceptions import UsageLimitExceeded
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

from tests.clients.checks import error_of, run_checks

URL = sys.argv[1]
PROVIDER = OpenAIProvider(base_url=f"{URL}/v1", api_key="none")
KINDS = (OpenAIChatModel, OpenAIResponsesModel)
RUNNER = asyncio.Runner()
"""One event loop for all runs, which keeps the client's connections."""
PROMPT = "Which colour is the sky?"


class Sky(BaseModel):
    """What an agent ends with."""

    colour: Literal["blue", "green"]


def agent(kind: Any, name: str = "smollm2", *, output: Any = str, max_tokens: int = 24, **settings: Any) -> Any:
    """Return a greedy agent."""
    how = {"temperature": 0, "max_tokens": max_tokens, **settings}
    return Agent(
        kind(name, provider=PROVIDER), instructions="Be short.", output_type=output, model_settings=how, retries=0
    )


def run(asked: Any) -> Any:
    """Return what a run ends with."""
    return RUNNER.run(asked.run(PROMPT, usage_limits=UsageLimits(request_limit=3))).output


def stream(asked: Any) -> Any:
    """Return what a streamed run ends with."""

    async def output() -> Any:
        async with asked.run_stream(PROMPT) as result:
            return await result.get_output()

    return RUNNER.run(output())


def adapters_are_chosen_by_name_and_by_list() -> None:
    for kind in KINDS:
        base, pirate = run(agent(kind)), run(agent(kind, "pirate"))
        assert base != pirate
        assert run(agent(kind, extra_body={"lora": [{"id": 0, "scale": 1.0}]})) == pirate
        assert stream(agent(kind, "pirate")) == pirate


def an_agent_ends_with_an_object() -> None:
    for kind in KINDS:
        for output in (Sky, NativeOutput(Sky)):  # by a call, and by a schema of the text
            asked = agent(kind, output=output, max_tokens=96, parallel_tool_calls=False)
            assert isinstance(run(asked), Sky)
            assert isinstance(stream(asked), Sky)


def tools_and_an_object_may_be_asked_for_at_once() -> None:
    # The model may call or answer with the object; a small one may never stop calling.
    for kind in KINDS:
        asked = agent(kind, output=NativeOutput(Sky), max_tokens=96, parallel_tool_calls=False)

        @asked.tool_plain  # type: ignore[untyped-decorator]
        def get_weather(city: Literal["Paris", "Rome"]) -> str:
            """Tell how the weather is in a city."""
            return f"It rains in {city}."

        try:
            assert isinstance(run(asked), Sky)
        except UsageLimitExceeded:
            print("the model never stopped calling")


def texts_are_embedded_under_an_adapter() -> None:
    def vectors(name: str) -> Any:
        embedder = Embedder(OpenAIEmbeddingModel(name, provider=PROVIDER))
        return RUNNER.run(embedder.embed_documents(["the sea", "a ship"])).embeddings

    base, pirate = vectors("smollm2"), vectors("pirate")
    assert base[0] != base[1]
    assert base[0] != pirate[0]


def bad_requests_are_the_clients_own_errors() -> None:
    unknown: dict[str, Any] = {"extra_body": {"lora": [{"id": 7, "scale": 1}]}}
    assert "lora" in error_of(ModelHTTPError, lambda: run(agent(OpenAIChatModel, **unknown)))


if __name__ == "__main__":
    run_checks(
        "pydantic-ai-slim",
        adapters_are_chosen_by_name_and_by_list,
        an_agent_ends_with_an_object,
        tools_and_an_object_may_be_asked_for_at_once,
        texts_are_embedded_under_an_adapter,
        bad_requests_are_the_clients_own_errors,
    )
