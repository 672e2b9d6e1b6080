"""The differences between prompts that docs/compatibility.md tells of, under "Prompts of chats", each as a question.

A question names the templates, or says what of them it takes, so that nothing else passes for it.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from model.tokens.chat_template import ChatTemplate
from server.chat.messages import read_message
from server.tools.formats import format_of
from tests.differential.pair import Json

REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Prompts:
    """What both servers made of one conversation."""

    model: str
    """The name of its template."""
    template: ChatTemplate
    body: Mapping[str, object]
    ours: Json
    peers: Json

    @property
    def is_named(self) -> bool:
        """Whether it is one of those that have names."""
        return self.model.startswith("--chat-template ")

    @property
    def continues(self) -> bool:
        """Whether the conversation ends with an answer to continue."""
        return bool(self.messages) and self.messages[-1].get("role") == "assistant"

    @property
    def messages(self) -> list[dict[str, object]]:
        """The messages, where they are any."""
        messages = self.body.get("messages")
        return [message for message in messages if isinstance(message, dict)] if isinstance(messages, list) else []

    @property
    def has_calls(self) -> bool:
        """Whether there are earlier calls of tools."""
        return any(message.get("tool_calls") for message in self.messages)

    @property
    def has_callable_tools(self) -> bool:
        """Whether the model may call tools."""
        return bool(self.body.get("tools")) and self.body.get("tool_choice") != "none"


Question = Callable[[Prompts, str, str], bool]
"""Whether a difference is this one; given with both prompts as text."""


def is_documented(prompts: Prompts) -> bool:
    """Whether the prompts differ in a way that is documented."""
    ours, peers = str(prompts.ours), str(prompts.peers)
    return any(is_this(prompts, ours, peers) for is_this in DOCUMENTED.values())


def _empty_answer(prompts: Prompts, ours: str, peers: str) -> bool:
    empty = any(message.get("role") == "assistant" and not message.get("content") for message in prompts.messages)
    return ours == REFUSED and empty and not prompts.has_calls and "Ministral-3" in prompts.model


def _tools_in_words(prompts: Prompts, ours: str, peers: str) -> bool:
    is_ours = "You have these tools, each with a JSON schema" in ours
    is_untold = format_of(prompts.template).is_generic or not prompts.template.describes_tools
    return prompts.has_callable_tools and is_untold and is_ours


def _calls_in_words(prompts: Prompts, ours: str, peers: str) -> bool:
    return prompts.has_calls and not prompts.template.shows_calls and "Result of the tool: " in ours


def _no_messages(prompts: Prompts, ours: str, peers: str) -> bool:
    return peers == REFUSED and prompts.model.startswith("google-gemma-4") and not prompts.messages


def _results_as_they_are(prompts: Prompts, ours: str, peers: str) -> bool:
    return prompts.has_calls and prompts.model == "google-gemma-4-31B-it-interleaved"


def _thinking_not_shown(prompts: Prompts, ours: str, peers: str) -> bool:
    if prompts.template.reply_layout.thinking is not None:
        return False
    if prompts.model == "unsloth-mistral-Devstral-Small-2507":
        without = re.sub(r"\[THINK\][^[]*(\[/THINK\])?", "", peers)
        has_thoughts = any(message.get("reasoning_content") for message in prompts.messages)
        lost = without.replace("[/INST]", "[/INST]Hi.", 1) if has_thoughts else without
        return (prompts.continues or has_thoughts) and ours in (without, lost)
    is_one = prompts.model in ("Kimi-K2-Instruct", "moonshotai-Kimi-K2", "LFM2-8B-A1B")
    return prompts.continues and is_one and ours == re.sub("<think>[^<]*(</think>)?", "", peers)


def _white_space_of_thoughts(prompts: Prompts, ours: str, peers: str) -> bool:
    is_one = prompts.model.startswith(("NVIDIA-Nemotron", "StepFun3.5", "poolside-Laguna-XS"))
    return prompts.continues and is_one and _without_space(ours) == _without_space(peers)


def _without_space(prompt: str) -> str:
    return re.sub(r"\s*(</?think>)\s*", r"\1", prompt)


def _start_of_thoughts(prompts: Prompts, ours: str, peers: str) -> bool:
    is_one = prompts.continues and prompts.model.startswith("deepseek-ai-DeepSeek-V4")
    head, start, tail = ours.rpartition("<think>")
    return is_one and bool(start) and peers == head + tail


_SAID_TWICE = ("CohereForAI-c4ai-command-r7b", "GLM-4.7", "poolside-Laguna", "llama-cpp-rwkv-world", "Spark2.5")
_MARKS = r"\s*(</?think>|<\|(?:START|END)_THINKING\|>)\s*"


def _said_once(prompts: Prompts, ours: str, peers: str) -> bool:
    is_one = prompts.continues and prompts.model.startswith(_SAID_TWICE)
    fewer = len(re.findall(_MARKS, ours)) < len(re.findall(_MARKS, peers))
    return is_one and fewer and re.sub(_MARKS, "", ours) == re.sub(_MARKS, "", peers)


def _thinking_ended(prompts: Prompts, ours: str, peers: str) -> bool:
    variables = prompts.body.get("chat_template_kwargs")
    is_unwanted = isinstance(variables, dict) and variables.get("enable_thinking") is False
    return is_unwanted and ours in (peers + "</think>", peers + "<|END_THINKING|>")


def _whole_header(prompts: Prompts, ours: str, peers: str) -> bool:
    if prompts.model == "microsoft-Phi-3.5-mini-instruct":
        return prompts.continues and ours == peers.replace("<|im_end|>assistant|>", "<|assistant|>")
    head, content, tail = ours.rpartition("<|content|>")
    return prompts.model == "upstage-Solar-Open-100B" and prompts.continues and bool(content) and peers == head + tail


def _no_generation_prompt(prompts: Prompts, ours: str, peers: str) -> bool:
    is_one = prompts.model in ("llama-cpp-rwkv-world", "upstage-Solar-Open-100B")
    return is_one and prompts.body.get("add_generation_prompt") is False and peers.startswith(ours)


def _ends_with_answer(prompts: Prompts, ours: str, peers: str) -> bool:
    content = str(prompts.messages[-1].get("content")) if prompts.continues else ""
    is_whole = prompts.body.get("add_generation_prompt") is False and not prompts.body.get("continue_final_message")
    return bool(content) and is_whole and content in ours and peers.endswith(content)


def _no_thoughts_to_continue(prompts: Prompts, ours: str, peers: str) -> bool:
    is_asked = prompts.body.get("continue_final_message") == "reasoning_content"
    return is_asked and ours == REFUSED and prompts.template.reply_layout.thinking is None


def _parts_joined(prompts: Prompts, ours: str, peers: str) -> bool:
    is_one = prompts.model in ("LFM2.5-8B-A1B", "mistralai-Ministral-3-14B-Reasoning-2512")
    has_parts = any(isinstance(message.get("content"), list) for message in prompts.messages)
    return is_one and has_parts and ours == peers.replace("one\ntwo", "onetwo")


def _named_continues_nothing(prompts: Prompts, ours: str, peers: str) -> bool:
    if not prompts.is_named or not prompts.continues:
        return False
    messages = [read_message(message, "messages") for message in prompts.messages]
    whole = prompts.template.render(messages, add_generation_prompt=False)
    return peers == whole


def _named_without_tools(prompts: Prompts, ours: str, peers: str) -> bool:
    return prompts.is_named and bool(prompts.body.get("tools")) and peers == REFUSED


def _named_without_system(prompts: Prompts, ours: str, peers: str) -> bool:
    return prompts.model == "--chat-template yandex" and peers == ours.replace("You are terse.\n", "")


DOCUMENTED: Mapping[str, Question] = {
    "Tools that are told in words (above)": _tools_in_words,
    "so are earlier calls and results beside them": _calls_in_words,
    "A conversation without messages is rendered": _no_messages,
    "An assistant's message that has neither content nor calls is a 400": _empty_answer,
    "Results of tools go to a template of Gemma 4 as they are": _results_as_they_are,
    "A template that shows no thinking gets none": _thinking_not_shown,
    "llama-server has white space of its own for Nemotron": _white_space_of_thoughts,
    "`</think>` alone for DeepSeek V4": _start_of_thoughts,
    "That there is no thinking is said once": _said_once,
    "Thinking that a template begins though none is wanted is ended": _thinking_ended,
    "An answer that is continued stands behind the whole header": _whole_header,
    "`add_generation_prompt` false is false to the template": _no_generation_prompt,
    "it ends with an assistant's message": _ends_with_answer,
    "thoughts of a model without thinking": _no_thoughts_to_continue,
    "Parts of a message are joined as the template joins them": _parts_joined,
    "llama-server ends the message that is to be continued": _named_continues_nothing,
    "refuses tools": _named_without_tools,
    "leaves out the system's text under `yandex`": _named_without_system,
}
"""Words of the documentation, and the difference that they tell of."""
