"""How an answer looks in Anthropic's Messages API: one message with blocks of thinking, text and uses of tools, whole
or as events.

Source: Anthropic's API reference; the events' order is that of its page on streaming. Thinking has an empty signature,
for nobody checks it here.
"""

import json
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field

from scheduler.events import FinishReason
from server.adapters.registry import ServedList
from server.engine import Engine
from server.errors import GenerationFailed, dump_json, messages_error_body
from server.replies.parts import CallArguments, CallStart, Content, Part, Reasoning, Reply, ToolCall
from server.replies.transcript import Piece, Transcript
from server.reply import ReplyForm, ReplyReader, read_reply
from server.streaming import Json, named_frame

_STOP_REASONS = {
    FinishReason.EOS: "end_turn",
    FinishReason.LIMIT: "max_tokens",
    FinishReason.WORD: "stop_sequence",
}


def _delta_event(index: int, kind: str, name: str, text: str) -> Json:
    return {"type": "content_block_delta", "index": index, "delta": {"type": kind, name: text}}


_BEFORE_TEXT, _, _AFTER_TEXT = named_frame(_delta_event(0, "text_delta", "text", "")).partition(b'""')


@dataclass(slots=True)
class _Blocks:
    """The blocks of a stream: which one is open, and the events that parts make."""

    num_begun: int = 0
    open_type: str | None = None

    def begin(self, block: Json) -> list[Json]:
        """Return the events that end the open block and begin the next."""
        ended = self.end()
        self.open_type = str(block["type"])
        self.num_begun += 1
        return [*ended, {"type": "content_block_start", "index": self.num_begun - 1, "content_block": block}]

    def end(self) -> list[Json]:
        """Return the events that end the open block, if there is one."""
        if self.open_type is None:
            return []
        signed = [self._delta("signature_delta", "signature", "")] if self.open_type == "thinking" else []
        self.open_type = None
        return [*signed, {"type": "content_block_stop", "index": self.num_begun - 1}]

    def add(self, part: Part) -> list[Json]:
        """Return the events of the next part."""
        match part:
            case Reasoning(text):
                begun = [] if self.open_type == "thinking" else self.begin(_thinking_block(""))
                return [*begun, self._delta("thinking_delta", "thinking", text)]
            case Content(text):
                begun = [] if self.open_type == "text" else self.begin(_text_block(""))
                return [*begun, self._delta("text_delta", "text", text)]
            case CallStart(_, call_id, name):
                return self.begin(_tool_block(call_id, name, {}))
            case CallArguments(_, text):
                return [self._delta("input_json_delta", "partial_json", text)]

    def _delta(self, kind: str, name: str, text: str) -> Json:
        return _delta_event(self.num_begun - 1, kind, name, text)


@dataclass(slots=True)
class MessagesDialect:
    """Events and bodies of `/v1/messages`, for one answer."""

    engine: Engine
    served: ServedList
    reply_form: ReplyForm | None = None
    end_of_stream: bytes = b""
    message_id: str = field(default_factory=lambda: "msg_" + secrets.token_hex(16))
    _blocks: _Blocks = field(default_factory=_Blocks)
    _reader: ReplyReader | None = None

    def opening(self, transcript: Transcript) -> list[Json]:
        """The message and, where it can have no others, its block of text, both of them empty."""
        started: Json = {"type": "message_start", "message": self._message(transcript, Reply(), [])}
        if self.reply_form is None:
            return [started, *self._blocks.begin(_text_block("")), {"type": "ping"}]
        self._reader = ReplyReader(self.reply_form)
        return [started, {"type": "ping"}]

    def partial(self, _transcript: Transcript, piece: Piece) -> bytes:
        """One event a piece of text, or the events of what is certain of it by now."""
        if self._reader is None:
            return _BEFORE_TEXT + dump_json(piece.text) + _AFTER_TEXT if piece.text else b""
        return b"".join(
            named_frame(event) for part in self._reader.push(piece.text) for event in self._blocks.add(part)
        )

    def closing(self, transcript: Transcript) -> list[Json]:
        """What was held back, why the message ended, and what it has used."""
        rest = [] if self._reader is None else self._reader.flush()
        events = [event for part in rest for event in self._blocks.add(part)]
        if not self._blocks.num_begun:
            events += self._blocks.begin(_text_block(""))
        reply = Reply() if self._reader is None else self._reader.reply
        return [
            *events,
            *self._blocks.end(),
            {"type": "message_delta", "delta": _stop(transcript, reply), "usage": usage(transcript)},
            {"type": "message_stop"},
        ]

    def summary(self, _transcripts: Sequence[Transcript]) -> list[Json]:
        """Nothing: there is one message."""
        return []

    def failure(self, _transcripts: Sequence[Transcript], error: GenerationFailed) -> list[Json]:
        """The error as it would be without a stream."""
        return [messages_error_body(error)]

    def frame(self, content: Json) -> bytes:
        """An event with its type as its name."""
        return named_frame(content)

    def whole(self, transcripts: Sequence[Transcript]) -> Json:
        """The message."""
        [transcript] = transcripts
        reply = read_reply(self.reply_form, transcript.text)
        return self._message(transcript, reply, _blocks_of(reply))

    def _message(self, transcript: Transcript, reply: Reply, content: list[Json]) -> Json:
        return {
            "id": self.message_id,
            "type": "message",
            "role": "assistant",
            "content": content,
            "model": self.served.model or self.engine.model.name,
            **_stop(transcript, reply),
            "usage": usage(transcript),
        }


def _blocks_of(reply: Reply) -> list[Json]:
    thinking = [_thinking_block(reply.reasoning)] if reply.reasoning else []
    tools = [_tool_block(call.call_id, call.name, _input_of(call)) for call in reply.calls]
    text = [_text_block(reply.content)] if reply.content or not (thinking or tools) else []
    return [*thinking, *text, *tools]


def _input_of(call: ToolCall) -> Json:
    """Return the arguments, none where the reply ended in the middle of them."""
    try:
        arguments = json.loads(call.arguments)
    except ValueError:
        return {}
    return arguments if isinstance(arguments, dict) else {}


def _text_block(text: str) -> Json:
    return {"type": "text", "text": text}


def _thinking_block(text: str) -> Json:
    return {"type": "thinking", "thinking": text, "signature": ""}


def _tool_block(call_id: str, name: str, arguments: Json) -> Json:
    return {"type": "tool_use", "id": call_id, "name": name, "input": arguments}


def _stop(transcript: Transcript, reply: Reply) -> Json:
    if transcript.reason is None:
        return {"stop_reason": None, "stop_sequence": None}
    is_call = bool(reply.calls) and transcript.reason is FinishReason.EOS
    reason = "tool_use" if is_call else _STOP_REASONS[transcript.reason]
    return {"stop_reason": reason, "stop_sequence": transcript.stopping_word or None}


def usage(transcript: Transcript) -> Json:
    """Return the token counts of an answer so far. Those of the prompt that were cached are counted apart."""
    num_cached = transcript.request.num_cached
    return {
        "input_tokens": transcript.num_prompt - num_cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": num_cached,
        "output_tokens": transcript.num_generated,
    }
