"""A reply read by its form."""

from dataclasses import replace

from model.tokens.detokenizer import Detokenizer
from server.replies.parts import CallStart, Content, Reasoning, Reply
from server.replies.reasoning import ReasoningTags
from server.reply import ReplyForm, ReplyReader, read_reply
from server.tools.fields import Tool
from server.tools.formats import HERMES, QWEN_CODER
from tests.server.fakes import BOS, TURN, byte_tokenizer

TAGS = ReasoningTags("<think>", "</think>")
TOOLS = (Tool("f", "", {}),)


def test_a_reply_without_a_form_is_content() -> None:
    assert read_reply(None, "<think>a</think>b") == Reply(content="<think>a</think>b")


def test_thinking_is_not_searched_for_calls() -> None:
    form = ReplyForm(reasoning=TAGS, calls=HERMES, tools=TOOLS)
    reply = read_reply(form, '<think><tool_call>{"name": "f"}</think>b')
    assert (reply.reasoning, reply.content, reply.calls) == ('<tool_call>{"name": "f"}', "b", [])


def test_parts_come_in_their_order() -> None:
    reader = ReplyReader(ReplyForm(reasoning=TAGS, calls=HERMES, tools=TOOLS))
    parts = reader.push('<think>a</think>b<tool_call>{"name": "f"}</tool_call>c<')
    assert [type(part) for part in parts] == [Reasoning, Content, CallStart, *[type(part) for part in parts[3:]]]
    assert reader.flush() == [Content("<")]
    assert reader.reply.content == "bc<"
    assert [(call.name, call.arguments) for call in reader.reply.calls] == [("f", "{}")]


def test_control_tokens_that_mark_parts_are_shown() -> None:
    tokenizer = byte_tokenizer()
    form = ReplyForm(reasoning=ReasoningTags("<s>", "</s>"), calls=replace(HERMES, opener="<|turn|>"))
    ids = form.visible_ids(tokenizer)
    assert ids == {BOS, TURN}  # and not the token that ends generation
    hidden, shown = Detokenizer(tokenizer), Detokenizer(tokenizer, shown_ids=ids)
    tokens = [TURN, ord("a")]
    assert "".join(map(hidden.push, tokens)) == "a"
    assert "".join(map(shown.push, tokens)) == "<|turn|>a"


def test_a_form_without_control_tokens_shows_none() -> None:
    assert ReplyForm(reasoning=TAGS, calls=HERMES).visible_ids(byte_tokenizer()) == frozenset()


def test_models_that_call_tools_in_the_middle_of_thinking_have_ended_it() -> None:
    form = ReplyForm(reasoning=TAGS, is_reasoning_begun=True, calls=QWEN_CODER, tools=TOOLS)
    for pieces in (
        ["hm <tool_call><function=f></function></tool_call>"],
        ["hm <tool", "_call><function=f>", "</function>"],
    ):
        reader = ReplyReader(form)
        for piece in pieces:
            reader.push(piece)
        reader.flush()
        assert (reader.reply.reasoning, reader.reply.content) == ("hm", "")
        assert [(call.name, call.arguments) for call in reader.reply.calls] == [("f", "{}")]


def test_a_tag_may_begin_with_a_control_token() -> None:
    form = ReplyForm(reasoning=ReasoningTags("<|turn|>thought", "</think>"))
    assert TURN in form.visible_ids(byte_tokenizer())
