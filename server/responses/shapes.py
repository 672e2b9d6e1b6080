"""What fields of OpenAI's Responses API look like, for the OpenAPI document alone."""

from typing import Literal, NotRequired, TypeAlias

from typing_extensions import TypedDict


class InputText(TypedDict):
    """A part of a message's content."""

    type: Literal["input_text", "output_text"]
    text: str


class InputMessage(TypedDict):
    """A message of the conversation."""

    type: NotRequired[Literal["message"]]
    role: Literal["user", "assistant", "system", "developer"]
    content: str | list[InputText]


class InputCall(TypedDict):
    """A call that the model made earlier."""

    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str


class InputCallOutput(TypedDict):
    """What a call gave."""

    type: Literal["function_call_output"]
    call_id: str
    output: str | list[InputText]


class InputReasoningText(TypedDict):
    """A part of what the model thought."""

    type: Literal["reasoning_text"]
    text: str


class InputReasoning(TypedDict):
    """What the model thought earlier."""

    type: Literal["reasoning"]
    content: NotRequired[list[InputReasoningText] | None]


InputItem: TypeAlias = InputMessage | InputCall | InputCallOutput | InputReasoning
"""`server/responses/input.py` reads it."""


class ResponsesTool(TypedDict):
    """A function that the model may ask to be called."""

    type: Literal["function"]
    name: str
    description: NotRequired[str | None]
    parameters: NotRequired[dict[str, object] | None]
    strict: NotRequired[bool | None]


class HostedTool(TypedDict):
    """A tool of any other type, which is left out."""

    type: str


class ForcedFunction(TypedDict):
    """The one function that must be called."""

    type: Literal["function"]
    name: str


ResponsesToolChoice: TypeAlias = Literal["none", "auto", "required"] | ForcedFunction


class ReasoningWanted(TypedDict):
    """How the model is to think."""

    effort: NotRequired[str | None]
    summary: NotRequired[Literal["auto"] | None]
