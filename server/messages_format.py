"""How an answer looks in Anthropic's Messages API: one message with one block of text, whole or as events.

Source: Anthropic's API reference; the events' order is that of its page on streaming.
"""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field

from scheduler.events import FinishReason
from server.adapter_registry import ServedList
from server.engine import Engine
from server.errors import GenerationFailed, dump_json, messages_error_body
from server.streaming import Json, named_frame
from server.transcript import Piece, Transcript

_STOP_REASONS = {
    FinishReason.EOS: "end_turn",
    FinishReason.LIMIT: "max_tokens",
    FinishReason.WORD: "stop_sequence",
}


def _delta_event(text: str) -> Json:
    return {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}}


_BEFORE_TEXT, _, _AFTER_TEXT = named_frame(_delta_event("")).partition(b'""')


@dataclass(frozen=True, slots=True)
class MessagesDialect:
    """Events and bodies of `/v1/messages`."""

    engine: Engine
    served: ServedList
    end_of_stream: bytes = b""
    message_id: str = field(default_factory=lambda: "msg_" + secrets.token_hex(16))

    def opening(self, transcript: Transcript) -> list[Json]:
        """The message and its block, both of them empty."""
        return [
            {"type": "message_start", "message": self._message(transcript, [])},
            {"type": "content_block_start", "index": 0, "content_block": _text_block("")},
            {"type": "ping"},
        ]

    def partial(self, _transcript: Transcript, piece: Piece) -> bytes:
        """One event a piece of text."""
        return _BEFORE_TEXT + dump_json(piece.text) + _AFTER_TEXT if piece.text else b""

    def closing(self, transcript: Transcript) -> list[Json]:
        """Why the message ended, and what it has used."""
        return [
            {"type": "content_block_stop", "index": 0},
            {"type": "message_delta", "delta": _stop(transcript), "usage": usage(transcript)},
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
        return self._message(transcript, [_text_block(transcript.text)])

    def _message(self, transcript: Transcript, content: list[Json]) -> Json:
        return {
            "id": self.message_id,
            "type": "message",
            "role": "assistant",
            "content": content,
            "model": self.served.model or self.engine.model.name,
            **_stop(transcript),
            "usage": usage(transcript),
        }


def _text_block(text: str) -> Json:
    return {"type": "text", "text": text}


def _stop(transcript: Transcript) -> Json:
    if transcript.reason is None:
        return {"stop_reason": None, "stop_sequence": None}
    return {"stop_reason": _STOP_REASONS[transcript.reason], "stop_sequence": transcript.stopping_word or None}


def usage(transcript: Transcript) -> Json:
    """Return the token counts of an answer so far. Those of the prompt that were cached are counted apart."""
    num_cached = transcript.request.num_cached
    return {
        "input_tokens": transcript.num_prompt - num_cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": num_cached,
        "output_tokens": transcript.num_generated,
    }
