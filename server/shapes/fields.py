"""What fields look like whose rules other files know, for the OpenAPI document alone: these types check nothing, so
that a wrong value is told of in the words of the file that reads it.
"""

from typing import Annotated, Any, Literal, NotRequired, TypeAlias

from pydantic import BeforeValidator, Field
from typing_extensions import TypedDict


def documented(kind: Any) -> BeforeValidator:
    """Return what gives a field the type `kind` in the document, and takes every value."""
    return BeforeValidator(lambda value: value, json_schema_input_type=kind)


class ListElement(TypedDict, total=False):
    """An adapter of a list, by id or by name; `server/adapters/catalog.py` reads it."""

    id: Annotated[int, Field(ge=0)]
    name: str
    scale: float | None


AdapterList: TypeAlias = list[ListElement]


class PromptObject(TypedDict):
    """A prompt as llama-server's clients for several kinds of media send it."""

    prompt_string: str


Prompt: TypeAlias = str | list[int | str] | PromptObject
"""Text, or token ids and texts in order; `server/generation.py` reads it."""
LogitBias: TypeAlias = list[tuple[int | str, float | Literal[False]]] | dict[str, float | Literal[False]]
"""By token id or text; false forbids. `server/generation.py` reads it."""


JsonSchema: TypeAlias = dict[str, Any] | bool
"""A JSON schema; `server/constraint_fields.py` reads what follows."""


class SchemaWrapper(TypedDict, total=False):
    """OpenAI's: a schema with a name."""

    name: str
    description: str
    strict: bool | None
    schema: dict[str, Any]


class ResponseFormat(TypedDict, total=False):
    """The form of an answer: any text, a JSON object, or JSON by a schema, which llama-server also takes bare."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: SchemaWrapper
    schema: dict[str, Any]


class TextFormat(TypedDict, total=False):
    """The form of a response's text, in OpenAI's Responses API."""

    type: Literal["text", "json_object", "json_schema"]
    name: str
    description: str
    strict: bool | None
    schema: dict[str, Any]


class TextOptions(TypedDict, total=False):
    """How a response's text is to be."""

    format: TextFormat
    verbosity: Literal["medium"]


class OutputConfig(TypedDict, total=False):
    """How an answer is to be, in Anthropic's API."""

    format: TextFormat
    effort: str


class StructuredOutputs(TypedDict, total=False):
    """vLLM's constraints; at most one is given."""

    json: dict[str, Any] | str
    json_object: bool
    regex: str
    grammar: str
    choice: list[str]


class GrammarTrigger(TypedDict):
    """What ends the free text before a lazy grammar: 0 a token, 1 a word, 2 a regular expression, 3 one that matches
    the whole text."""

    type: Literal[0, 1, 2, 3, "token", "word", "pattern", "pattern_full"]
    value: NotRequired[str]
    token: NotRequired[int]


class TextPart(TypedDict):
    """A part of a message's content."""

    type: Literal["text"]
    text: str


class CalledFunction(TypedDict):
    """What an earlier call was."""

    name: str
    arguments: str | dict[str, object]


class ToolCallShape(TypedDict):
    """A call in an earlier message of the assistant."""

    id: NotRequired[str]
    type: Literal["function"]
    function: CalledFunction


class ContextChunk(TypedDict):
    """A text beside the one to fill in; `server/routes/infill.py` reads it."""

    text: str
    filename: NotRequired[str]


class PartsObject(TypedDict):
    """An input as parts of text."""

    content: list[TextPart]


EmbeddingInput: TypeAlias = Prompt | PartsObject
"""What is to be embedded; `server/embeddings/schema.py` reads it."""


class ChatMessage(TypedDict):
    """A message of a conversation; `server/chat/messages.py` reads it."""

    role: str
    content: NotRequired[str | list[TextPart] | None]
    reasoning_content: NotRequired[str | None]
    tool_calls: NotRequired[list[ToolCallShape] | None]
    tool_call_id: NotRequired[str | None]


class FunctionDefinition(TypedDict):
    """A function that the model may ask to be called."""

    name: str
    description: NotRequired[str | None]
    parameters: NotRequired[dict[str, object] | None]


class ToolDefinition(TypedDict):
    """A tool; `server/tools/fields.py` reads it."""

    type: Literal["function"]
    function: FunctionDefinition


class FunctionName(TypedDict):
    """A function by its name."""

    name: str


class ForcedTool(TypedDict):
    """The one tool that must be called."""

    type: Literal["function"]
    function: FunctionName


ToolChoice: TypeAlias = Literal["none", "auto", "required"] | ForcedTool
"""`server/tools/fields.py` reads it."""
