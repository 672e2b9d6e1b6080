"""How families of models write calls of tools in their text, and which of them a chat template belongs to.

One table. A template that takes no tools, or whose way to call them is not in the table, gets the generic form, which
`server/chat/tools.py` explains to the model in words.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from model.tokens.chat_template import ChatTemplate
from server.replies.reasoning import HARMONY_TAGS
from server.tools.fields import Tool
from server.tools.gemma_call import GemmaCall
from server.tools.harmony_call import CALL_TRIGGERS
from server.tools.json_object import JsonObject
from server.tools.named_json import NamedJson
from server.tools.notation import Notation
from server.tools.pythonic import Pythonic
from server.tools.tagged import Tagged


@dataclass(frozen=True, slots=True)
class CallFormat:
    """One family's form: a notation, and the words around its calls. Where none of them opens a call, one is recognised
    at the beginning of the reply alone, and only where it names a tool of the request: anything else is text."""

    notation: Notation
    opener: str = ""
    """Stands before each call."""
    closer: str = ""
    section_opener: str = ""
    """Stands before the first call, and tells that calls come."""
    section_closer: str = ""
    is_array: bool = False
    """Whether calls are written as a JSON array."""
    optional_opener: str = ""
    """May stand before a call where nothing else does."""
    around_name: tuple[str, str] = ("", "")
    """Where its opener was left out, a call may begin with the name of a tool between these words."""
    call_id_length: int = 0
    """What templates of this family want; 0: anything."""
    ends_thinking: bool = False
    """Whether models call tools in the middle of thinking, which is over then."""
    is_in_channels: bool = False
    """Whether calls are messages of replies with channels (harmony_call.py), and the notation means nothing."""
    example: str = ""
    """A call, as a model is told to write it where its template tells of no tools; empty where that is never so."""
    is_generic: bool = False

    @property
    def trigger(self) -> str:
        """The first word of calls; empty where there is none."""
        return self.section_opener or self.opener

    def triggers(self, tools: Iterable[Tool]) -> tuple[str, ...]:
        """Return the words that show that calls of these tools come; none where nothing does."""
        if self.is_in_channels:
            return CALL_TRIGGERS
        return (self.trigger, *self.bare_openers(tools)) if self.trigger else ()

    def bare_openers(self, tools: Iterable[Tool]) -> tuple[str, ...]:
        """Return the words with which a call of a tool begins where its opener was left out."""
        before, behind = self.around_name
        return tuple(before + tool.name + behind for tool in tools) if before else ()

    @property
    def interrupts(self) -> tuple[str, ...]:
        """The words that end thinking, beside its tag."""
        openers = (self.section_opener, self.opener) if self.ends_thinking else ()
        return tuple(word for word in openers if word)

    @property
    def markers(self) -> tuple[str, ...]:
        """The words that may be tokens of their own, which a reply usually does not show."""
        around = (self.section_opener, self.section_closer, self.opener, self.closer, self.optional_opener)
        return tuple(word for word in (*around, *self.notation.markers) if word)


_NAME = "name of the tool"
_ARGUMENTS = '{"name of an argument": value}'
GENERIC = CallFormat(JsonObject(), example=f'{{"name": "{_NAME}", "arguments": {_ARGUMENTS}}}', is_generic=True)
HERMES = CallFormat(JsonObject(), "<tool_call>", "</tool_call>")
LLAMA = CallFormat(JsonObject("parameters"), optional_opener="<|python_tag|>")
MISTRAL = CallFormat(
    JsonObject(id_key="id", id_length=9), section_opener="[TOOL_CALLS]", is_array=True, call_id_length=9
)
MISTRAL_NAMED = CallFormat(NamedJson("[ARGS]", id_mark="[CALL_ID]"), "[TOOL_CALLS]", call_id_length=9)
_FUNCTION = Tagged("<function=", ">", "<parameter=", ">", "</parameter>", "</function>")
QWEN_CODER = CallFormat(
    replace(_FUNCTION, is_padded=True),
    "<tool_call>",
    "</tool_call>",
    around_name=("<function=", ">"),
    ends_thinking=True,
)
SEED = CallFormat(_FUNCTION, "<seed:tool_call>", "</seed:tool_call>")
GLM = CallFormat(
    Tagged("", "", "<arg_key>", "</arg_key>", "</arg_value>", "</tool_call>", before_value="<arg_value>"), "<tool_call>"
)
MINIMAX = CallFormat(
    Tagged('<invoke name="', '">', '<parameter name="', '">', "</parameter>", "</invoke>"),
    section_opener="<minimax:tool_call>",
    section_closer="</minimax:tool_call>",
)
_DSML = Tagged(
    '<｜DSML｜invoke name="',
    '">',
    '<｜DSML｜parameter name="',
    '" string="true">',
    "</｜DSML｜parameter>",
    "</｜DSML｜invoke>",
    json_behind_key='" string="false">',
)
DEEPSEEK_3_2 = CallFormat(_DSML, section_opener="<｜DSML｜function_calls>", section_closer="</｜DSML｜function_calls>")
DEEPSEEK_4 = CallFormat(_DSML, section_opener="<｜DSML｜tool_calls>", section_closer="</｜DSML｜tool_calls>")
MINICPM = CallFormat(Tagged("", '">', '<param name="', '">', "</param>", "</function>"), '<function name="')
_DEEPSEEK_WORDS = ("<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>")
DEEPSEEK = CallFormat(
    NamedJson("<｜tool▁sep｜>"),
    *_DEEPSEEK_WORDS,
    example="<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>"
    f"{_NAME}<｜tool▁sep｜>{_ARGUMENTS}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
)
DEEPSEEK_R1 = CallFormat(
    NamedJson("\n```json\n", "function<｜tool▁sep｜>", "```"),
    *_DEEPSEEK_WORDS,
    example="<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>"
    f"{_NAME}\n```json\n{_ARGUMENTS}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
)
KIMI = CallFormat(
    NamedJson("<|tool_call_argument_begin|>", is_numbered=True),
    "<|tool_call_begin|>",
    "<|tool_call_end|>",
    "<|tool_calls_section_begin|>",
    "<|tool_calls_section_end|>",
    ends_thinking=True,
)
FUNCTIONARY = CallFormat(NamedJson(">"), "<function=", "</function>")
COMMAND_R7B = CallFormat(
    JsonObject("parameters", "tool_name", "tool_call_id"),
    section_opener="<|START_ACTION|>",
    section_closer="<|END_ACTION|>",
    is_array=True,
)
GRANITE = CallFormat(JsonObject(), section_opener="<|tool_call|>", is_array=True)
NEMOTRON_NANO = CallFormat(JsonObject(), section_opener="<TOOLCALL>", section_closer="</TOOLCALL>", is_array=True)
APRIEL = CallFormat(JsonObject(), section_opener="<tool_calls>", section_closer="</tool_calls>", is_array=True)
MINIMAX_M1 = CallFormat(JsonObject(), section_opener="<tool_calls>", section_closer="</tool_calls>")
GEMMA_4 = CallFormat(GemmaCall(), "<|tool_call>", "<tool_call|>")
LFM2 = CallFormat(Pythonic(), section_opener="<|tool_call_start|>", section_closer="<|tool_call_end|>", is_array=True)
HARMONY = CallFormat(JsonObject(), is_in_channels=True)
GIGACHAT = CallFormat(JsonObject(), "<|function_call|>")

_SIGNS: Mapping[tuple[str, ...], CallFormat] = {
    (HARMONY_TAGS.start, "functions."): HARMONY,
    ("[TOOL_CALLS]", "[ARGS]"): MISTRAL_NAMED,
    ("[TOOL_CALLS]",): MISTRAL,
    ("<tool_call>", "<arg_key>", "<arg_value>"): GLM,
    ("<seed:tool_call>", "<function=", "<parameter="): SEED,
    ("<tool_call>", "<function=", "<parameter="): QWEN_CODER,
    ("<minimax:tool_call>", "<invoke name="): MINIMAX,
    ("｜DSML｜", "function_calls"): DEEPSEEK_3_2,
    ("｜DSML｜", "tool_calls"): DEEPSEEK_4,
    ("<｜tool▁calls▁begin｜>", "```json"): DEEPSEEK_R1,
    ("<｜tool▁calls▁begin｜>", "<｜tool▁sep｜>"): DEEPSEEK,
    ("<|tool_calls_section_begin|>", "<|tool_call_argument_begin|>"): KIMI,
    ("<|START_ACTION|>", "tool_name"): COMMAND_R7B,
    ('<function name="', '<param name="'): MINICPM,
    ("<|tool_call|>",): GRANITE,
    ("<TOOLCALL>",): NEMOTRON_NANO,
    ("<|function_call|>",): GIGACHAT,
    ("<|tool_call>call:", "<tool_call|>"): GEMMA_4,
    ("<|tool_call_start|>",): LFM2,
    ("<|tool_list_start|>",): LFM2,
    ("<tool_calls>", "<beginning_of_sentence>"): MINIMAX_M1,
    ("<tool_calls>", '"arguments"'): APRIEL,
    ("<function=", "</function>", "<|start_header_id|>"): FUNCTIONARY,
    ("<tool_call>", "<function="): GENERIC,  # forms that nobody here reads, and that share a word with Hermes'
    ("<tool_call>", "<invoke name="): GENERIC,
    ("<tool_call>", "arguments"): HERMES,
    ("<|start_header_id|>ipython<|end_header_id|>", '"parameters"'): LLAMA,
}
"""The words that templates of a family contain; the first whose words are all there."""


def format_of(template: ChatTemplate) -> CallFormat:
    """Return the form in which the template's model writes calls."""
    source = template.tool_use_source or template.source
    form = next((form for signs, form in _SIGNS.items() if all(sign in source for sign in signs)), GENERIC)
    is_known = template.describes_tools or (form.example and template.shows_calls)
    return form if is_known else GENERIC
