"""How tools get into a prompt: by the chat template where it knows them, else in words.

In words means: the system's message lists the tools and tells how to call one. Where the template does not know calls
either, earlier ones are the assistant's text, and their results are the user's: the form GENERIC of
`server/tools/formats.py`.
"""

import json
from collections.abc import Mapping, Sequence

from model.tokens.chat_template import ChatTemplate
from server.chat.messages import Message
from server.errors import FieldInvalid
from server.tools.fields import Tool, ToolUse
from server.tools.formats import CallFormat


def messages_for_template(
    template: ChatTemplate, form: CallFormat, messages: Sequence[Message], use: ToolUse
) -> list[Message]:
    """Return the messages as the template is to have them. Raises FieldInvalid where the arguments of an earlier call
    are no JSON and the template wants to write them itself.
    """
    if not template.shows_calls or (form.is_generic and use.callable):
        shown = _in_words(messages)
    else:
        shown = [_with_template_calls(template, form, message, index) for index, message in enumerate(messages)]
    is_told = template.describes_tools and not form.is_generic
    return shown if is_told or not use.callable else _with_instructions(template, shown, _instructions(form, use))


def _with_template_calls(template: ChatTemplate, form: CallFormat, message: Message, index: int) -> Message:
    calls = message.get("tool_calls")
    if not isinstance(calls, list) or not calls:
        return message
    # Templates that show calls look into the content without asking whether there is any. Before calls in channels they
    # refuse it beside thinking.
    is_hidden = form.is_in_channels and message.get("reasoning_content")
    shown: Message = {**message, "content": "" if is_hidden else message.get("content") or ""}
    if template.takes_argument_objects:
        shown["tool_calls"] = [
            {**call, "function": {**call["function"], "arguments": _as_object(call["function"]["arguments"], place)}}
            for number, call in enumerate(calls)
            for place in [f"messages[{index}].tool_calls[{number}].function.arguments"]
        ]
    return shown


def _as_object(arguments: str, field: str) -> object:
    try:
        return json.loads(arguments) if arguments else {}
    except ValueError as error:
        raise FieldInvalid(field, f"must be JSON: {error}") from None


def _in_words(messages: Sequence[Message]) -> list[Message]:
    """Return the messages with calls and results as text. Results that follow each other are one message, for many
    templates want user and assistant to take turns.
    """
    result: list[Message] = []
    is_after_result = False
    for message in messages:
        is_result = message["role"] == "tool"
        if is_result:
            text = _result_in_words(message)
            if is_after_result:
                result[-1]["content"] = f"{result[-1]['content']}\n{text}"
            else:
                result.append({"role": "user", "content": text})
        else:
            result.append(_calls_in_words(message))
        is_after_result = is_result
    return result


def _calls_in_words(message: Message) -> Message:
    calls = message.get("tool_calls")
    if not isinstance(calls, list) or not calls:
        return message
    lines = [_call_in_words(call["function"]["name"], call["function"]["arguments"]) for call in calls]
    others = {name: value for name, value in message.items() if name != "tool_calls"}
    content = message.get("content")
    return {**others, "content": "\n".join([str(content), *lines] if content else lines)}


def _call_in_words(name: str, arguments: str) -> str:
    return f'{{"name": {json.dumps(name)}, "arguments": {arguments or "{}"}}}'


def _result_in_words(message: Message) -> str:
    return f"Result of the tool: {message.get('content') or ''}"


def _instructions(form: CallFormat, use: ToolUse) -> str:
    tools = "\n".join(json.dumps(_description(tool), ensure_ascii=False) for tool in use.callable)
    when = "You must call" if use.choice == "required" else "Where it helps to answer, call"
    several = "one or several of them, an object on a line each" if form.is_generic else "one or several of them"
    how_many, kind = several if use.is_parallel else "one of them", "JSON" if form.is_generic else "text"
    return (
        f"You have these tools, each with a JSON schema of its arguments:\n{tools}\n"
        f"{when} {how_many}, by a reply that is nothing but {kind} of this form:\n{form.example}"
    )


def _description(tool: Tool) -> Mapping[str, object]:
    about = {"description": tool.description} if tool.description else {}
    return {"name": tool.name, **about, "parameters": tool.parameters}


def _with_instructions(template: ChatTemplate, messages: Sequence[Message], text: str) -> list[Message]:
    """Return the messages with `text` at the end of the system's, or before the user's where there can be no system."""
    role = "system" if template.takes_system_messages else "user"
    if messages and messages[0]["role"] == role:
        first = str(messages[0].get("content") or "")
        both = f"{first}\n\n{text}" if role == "system" else f"{text}\n\n{first}"
        return [{**messages[0], "content": both}, *messages[1:]]
    return [{"role": role, "content": text}, *messages]
