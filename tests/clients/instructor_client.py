"""`instructor`, which gets models of pydantic out of clients: `python -m tests.clients.instructor_client URL`."""

import sys
from collections.abc import Mapping
from typing import Any, Literal

import anthropic
import instructor
import openai
from instructor.core import InstructorRetryException
from pydantic import BaseModel, Field

from tests.clients.checks import error_of, run_checks

URL = sys.argv[1]
CLIENT = openai.OpenAI(base_url=f"{URL}/v1", api_key="none", max_retries=0, timeout=300)
ONE_CALL: Mapping[str, Any] = {"extra_body": {"parallel_tool_calls": False}}
"""instructor takes an answer that is cut off for a failure, and a small model goes on calling."""
ASKED: dict[str, Any] = {
    "messages": [{"role": "user", "content": "I stayed in Rome for 3 days."}],
    "temperature": 0,
    "max_retries": 0,
}


class Visit(BaseModel):
    """A visit of a city."""

    city: Literal["Paris", "Rome"]
    days: int = Field(ge=1, le=9)


def visit(mode: instructor.Mode, model: str = "smollm2", **more: Any) -> Visit:
    """Return what an answer is read as."""
    client = instructor.from_openai(CLIENT, mode=mode)
    limit = "max_output_tokens" if mode is instructor.Mode.RESPONSES_TOOLS else "max_tokens"
    answer = client.create(model=model, response_model=Visit, **{limit: 96}, **ASKED, **more)
    assert isinstance(answer, Visit)
    return answer


def models_come_out_of_calls() -> None:
    assert visit(instructor.Mode.TOOLS, **ONE_CALL).city == "Rome"
    assert visit(instructor.Mode.TOOLS, "pirate", **ONE_CALL).days in range(1, 10)


def models_come_out_of_schemas() -> None:
    assert visit(instructor.Mode.JSON_SCHEMA).city == "Rome"


def models_come_out_of_responses() -> None:
    assert visit(instructor.Mode.RESPONSES_TOOLS, **ONE_CALL).city in ("Paris", "Rome")


def models_come_out_of_messages() -> None:
    client = instructor.from_anthropic(anthropic.Anthropic(base_url=URL, api_key="none", max_retries=0, timeout=300))
    asked: Mapping[str, Any] = {"messages": ASKED["messages"], "max_retries": 0, "max_tokens": 96}
    assert isinstance(client.create(model="smollm2", response_model=Visit, **asked), Visit)


def models_grow_in_streams() -> None:
    client = instructor.from_openai(CLIENT, mode=instructor.Mode.TOOLS)
    grown = list(client.create_partial(model="smollm2", response_model=Visit, max_tokens=96, **ASKED, **ONE_CALL))
    assert len(grown) > 1
    assert grown[-1].model_dump() == visit(instructor.Mode.TOOLS, **ONE_CALL).model_dump()


def bad_requests_are_errors_with_the_servers_words() -> None:
    unknown: dict[str, Any] = {"extra_body": {"lora": [{"id": 7, "scale": 1}]}}
    refused = error_of(InstructorRetryException, lambda: visit(instructor.Mode.TOOLS, **unknown))
    assert "lora" in refused


if __name__ == "__main__":
    run_checks(
        "instructor",
        models_come_out_of_calls,
        models_come_out_of_schemas,
        models_come_out_of_responses,
        models_come_out_of_messages,
        models_grow_in_streams,
        bad_requests_are_errors_with_the_servers_words,
    )
