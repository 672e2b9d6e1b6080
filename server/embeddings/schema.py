"""The bodies of llama-server's /embedding and OpenAI's /v1/embeddings, and the prompts in them."""

from collections.abc import Mapping
from typing import Annotated, ClassVar

from server.chat.messages import read_text
from server.errors import BodyInvalid, FieldInvalid
from server.fields import Text, json_type, whole
from server.generation import Prompt, is_id, read_prompt
from server.schemas import ListFields
from server.shapes.fields import EmbeddingInput, documented


class EmbeddingsBody(ListFields):
    """The body of all routes of embeddings. None: the server's default."""

    neutral_values: ClassVar[Mapping[str, tuple[object, ...]]] = {"truncate_prompt_tokens": ()}

    input: Annotated[object, documented(EmbeddingInput | list[EmbeddingInput])] = None
    content: Annotated[object, documented(EmbeddingInput | list[EmbeddingInput])] = None
    """llama-server's name of it, for answers in its own form."""
    encoding_format: Text = "float"
    embd_normalize: Annotated[int, whole(-1)] | None = None
    """-1: not at all; 0: the largest absolute value becomes 32760; 1: the sum of absolute values becomes 1; 2: the
    length; more: that p-norm."""
    dimensions: Annotated[int, whole(1)] | None = None

    @property
    def is_base64(self) -> bool:
        """Whether vectors are wanted as the base64 of their float32. Raises FieldInvalid."""
        if self.encoding_format not in ("float", "base64"):
            raise FieldInvalid("encoding_format", f'must be "float" or "base64", but got {self.encoding_format!r}')
        return self.encoding_format == "base64"

    def prompts(self) -> tuple[str, list[Prompt]]:
        """Return the field that holds the prompts, and the prompts. Raises BodyInvalid and FieldInvalid."""
        field, value = ("input", self.input) if self.input is not None else ("content", self.content)
        if value is None:
            raise BodyInvalid('"input" or "content" must be provided')
        if not isinstance(value, list) or any(is_id(item) for item in value):
            return field, [_read_input(value, field)]
        if not value:
            raise BodyInvalid(f'"{field}" must not be empty')
        return field, [_read_input(item, f"{field}[{index}]") for index, item in enumerate(value)]


def _read_input(value: object, field: str) -> Prompt:
    if not isinstance(value, dict) or "content" not in value:
        return read_prompt(value, field)
    parts, field = value["content"], f"{field}.content"
    if not isinstance(parts, list):
        raise FieldInvalid(field, f"must be an array of parts, but is {json_type(parts)}")
    return (read_text(parts, field, between=""),)
