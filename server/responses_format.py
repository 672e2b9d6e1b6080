"""How an answer looks in OpenAI's Responses API: one response with one message with one text, whole or as events.

An answer that reaches its limit of tokens is `incomplete`, not `completed`, in its status and in its last event.
Source: OpenAI's API reference; the events' order is that of its streaming guide.
"""

import itertools
import secrets
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from scheduler.events import FinishReason
from server.adapter_registry import ServedList
from server.engine import Engine
from server.errors import GenerationFailed, dump_json, error_message
from server.responses_schema import ResponsesBody
from server.streaming import Json, named_frame
from server.transcript import Piece, Transcript

_IN_PROGRESS = "in_progress"


@dataclass(slots=True)
class ResponsesDialect:
    """Events and bodies of `/v1/responses`, for one answer."""

    engine: Engine
    body: ResponsesBody
    served: ServedList
    end_of_stream: bytes = b""
    response_id: str = field(default_factory=lambda: "resp_" + secrets.token_hex(16))
    message_id: str = field(default_factory=lambda: "msg_" + secrets.token_hex(16))
    created_s: int = field(default_factory=lambda: int(time.time()))
    _numbers: Iterator[int] = field(default_factory=itertools.count)
    """The sequence numbers of the events to come."""
    _around_text: tuple[bytes, bytes] | None = None
    """What stands before and after the text of a delta, up to its sequence number."""

    def opening(self, transcript: Transcript) -> list[Json]:
        """The response, its message and the message's text, all of them empty."""
        return [
            self._event("response.created", response=self._response(transcript, _IN_PROGRESS)),
            self._event("response.in_progress", response=self._response(transcript, _IN_PROGRESS)),
            self._event("response.output_item.added", output_index=0, item=self._message([], _IN_PROGRESS)),
            self._text_event("response.content_part.added", part=_text_part("")),
        ]

    def partial(self, _transcript: Transcript, piece: Piece) -> bytes:
        """One event a piece of text."""
        if not piece.text:
            return b""
        if self._around_text is None:
            event = self._text_event("response.output_text.delta", number=0, delta="", logprobs=[])
            before, _, after = named_frame(event).partition(b'""')  # the first empty string is the text
            self._around_text = before, after.removesuffix(b"0}\n\n")
        before, after = self._around_text
        return before + dump_json(piece.text) + after + b"%d}\n\n" % next(self._numbers)

    def closing(self, transcript: Transcript) -> list[Json]:
        """The text, the message and the response again, as they have become."""
        status, part = _status(transcript), _text_part(transcript.text)
        return [
            self._text_event("response.output_text.done", text=transcript.text, logprobs=[]),
            self._text_event("response.content_part.done", part=part),
            self._event("response.output_item.done", output_index=0, item=self._message([part], status)),
            self._event(f"response.{status}", response=self._response(transcript, status)),
        ]

    def summary(self, _transcripts: Sequence[Transcript]) -> list[Json]:
        """Nothing: the last event has it all."""
        return []

    def failure(self, transcripts: Sequence[Transcript], error: GenerationFailed) -> list[Json]:
        """The response as far as it came, with the error in it."""
        [transcript] = transcripts
        response = self._response(transcript, "failed")
        response["error"] = {"code": "server_error", "message": error_message(error)}
        return [self._event("response.failed", response=response)]

    def frame(self, content: Json) -> bytes:
        """An event with its type as its name."""
        return named_frame(content)

    def whole(self, transcripts: Sequence[Transcript]) -> Json:
        """The response."""
        [transcript] = transcripts
        return self._response(transcript, _status(transcript))

    def _event(self, kind: str, number: int | None = None, **content: object) -> Json:
        return {"type": kind, **content, "sequence_number": next(self._numbers) if number is None else number}

    def _text_event(self, kind: str, number: int | None = None, **content: object) -> Json:
        place: Json = {"item_id": self.message_id, "output_index": 0, "content_index": 0}
        return self._event(kind, number, **place, **content)

    def _message(self, content: list[Json], status: str) -> Json:
        return {"type": "message", "id": self.message_id, "status": status, "role": "assistant", "content": content}

    def _response(self, transcript: Transcript, status: str) -> Json:
        sampling = transcript.request.sampling
        has_text = status != _IN_PROGRESS
        has_ended = has_text and status != "failed"
        output = [self._message([_text_part(transcript.text)], status if has_ended else "incomplete")]
        return {
            "id": self.response_id,
            "object": "response",
            "created_at": self.created_s,
            "completed_at": int(time.time()) if status == "completed" else None,
            "status": status,
            "background": False,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "instructions": self.body.instructions,
            "max_output_tokens": self.body.n_predict,
            "metadata": self.body.metadata,
            "model": self.served.model or self.engine.model.name,
            "output": output if has_text else [],
            "parallel_tool_calls": True,
            "previous_response_id": None,
            "reasoning": {"effort": None, "summary": None},
            "store": False,
            "temperature": sampling.temperature,
            "text": {"format": self.body.text.get("format") or {"type": "text"}},
            "tool_choice": "auto",
            "tools": [],
            "top_p": sampling.top_p,
            "truncation": "disabled",
            "usage": usage(transcript) if has_ended else None,
        }


def _status(transcript: Transcript) -> str:
    return "incomplete" if transcript.reason is FinishReason.LIMIT else "completed"


def _text_part(text: str) -> Json:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def usage(transcript: Transcript) -> Json:
    """Return the token counts of an answer under the names of this API."""
    num_prompt, num_generated = transcript.num_prompt, transcript.num_generated
    return {
        "input_tokens": num_prompt,
        "input_tokens_details": {"cached_tokens": transcript.request.num_cached, "cache_write_tokens": 0},
        "output_tokens": num_generated,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": num_prompt + num_generated,
    }
