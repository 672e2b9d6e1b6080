"""How families of models write a call of a tool in their text, and which of them a chat template belongs to.

One table. A template that takes no tools, or whose way to call them is not in the table, gets the generic form, which
`server/tools/prompt.py` explains to the model in words.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum

from model.chat_template import ChatTemplate
from server.replies.parts import random_id


class Layout(Enum):
    """What a call looks like."""

    OBJECT = "object"
    """A JSON object with the name and the arguments."""
    ARRAY = "array"
    """Such objects in an array."""
    NAMED = "named"
    """The name, a mark, and the arguments as JSON."""


@dataclass(frozen=True, slots=True)
class CallFormat:
    """One family's form. Where `opener` is empty, a call is recognised at the beginning of the reply alone, and only
    where it names a tool of the request: anything else is text."""

    opener: str
    closer: str
    arguments_key: str
    layout: Layout = Layout.OBJECT
    optional_opener: str = ""
    """May stand before a call where `opener` is empty."""
    call_id_length: int = 0
    """What templates of this family want; 0: anything."""
    is_generic: bool = False

    @property
    def markers(self) -> tuple[str, ...]:
        """The words that may be tokens of their own, which a reply usually does not show."""
        marks = () if self.layout is Layout.OBJECT else (ARGUMENTS_MARK, CALL_ID_MARK)
        return tuple(word for word in (self.opener, self.closer, self.optional_opener, *marks) if word)

    def new_call_id(self) -> str:
        """Return an id for a call."""
        return random_id(self.call_id_length) if self.call_id_length else "call_" + random_id(24)


ARGUMENTS_KEYS = ("arguments", "parameters")
"""What models call the arguments. They mix these up, so both are read everywhere."""
ARGUMENTS_MARK = "[ARGS]"
CALL_ID_MARK = "[CALL_ID]"
"""Mistral's marks in a call of the layout NAMED."""

GENERIC = CallFormat("", "", "arguments", is_generic=True)
_HERMES = CallFormat("<tool_call>", "</tool_call>", "arguments")
_LLAMA = CallFormat("", "", "parameters", optional_opener="<|python_tag|>")
_MISTRAL = CallFormat("[TOOL_CALLS]", "", "arguments", Layout.ARRAY, call_id_length=9)
_MISTRAL_NAMED = replace(_MISTRAL, layout=Layout.NAMED)

_SIGNS: Mapping[tuple[str, ...], CallFormat] = {
    ("[TOOL_CALLS]", "[ARGS]"): _MISTRAL_NAMED,
    ("[TOOL_CALLS]",): _MISTRAL,
    ("<tool_call>", "arguments"): _HERMES,
    ("<|start_header_id|>ipython<|end_header_id|>", '"parameters"'): _LLAMA,
}
"""The words that templates of a family contain; the first whose words are all there."""
_OTHER_FORMS = ("<function=", "<arg_key>", "<invoke name=")
"""Words of families whose calls are no JSON, and which share a marker with one that is in the table."""


def format_of(template: ChatTemplate) -> CallFormat:
    """Return the form in which the template's model writes calls."""
    source = template.tool_use_source or template.source
    if not template.describes_tools or any(word in source for word in _OTHER_FORMS):
        return GENERIC
    return next((form for signs, form in _SIGNS.items() if all(sign in source for sign in signs)), GENERIC)
