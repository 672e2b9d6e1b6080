"""How an answer looks in OpenAI's Responses API: one response with items of output, whole or as events.

An answer that reaches its limit of tokens is `incomplete`, not `completed`, in its status. Its last event is
`response.completed` all the same, as in llama-server and vLLM: there clients look for the response.
Source: OpenAI's API reference; the events' order is that of its streaming guide.
"""

import itertools
import secrets
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from scheduler.events import FinishReason
from server.adapters.registry import ServedList
from server.engine import Engine
from server.errors import GenerationFailed, dump_json, error_message
from server.native_format import progress_timings, prompt_progress, timings
from server.replies.parts import Content, Part
from server.replies.transcript import Piece, Transcript
from server.reply import ReplyForm, ReplyReader
from server.responses.items import OutputItems, output_of
from server.responses.schema import ResponsesBody
from server.streaming import Json, named_frame
from server.thinking_tokens import num_thinking_tokens

_IN_PROGRESS = "in_progress"


@dataclass(slots=True)
class ResponsesDialect:
    """Events and bodies of `/v1/responses`, for one answer."""

    engine: Engine
    body: ResponsesBody
    served: ServedList
    reply_form: ReplyForm | None = None
    end_of_stream: bytes = b""
    response_id: str = field(default_factory=lambda: "resp_" + secrets.token_hex(16))
    created_s: int = field(default_factory=lambda: int(time.time()))
    _items: OutputItems = field(default_factory=OutputItems)
    _reader: ReplyReader | None = None
    _numbers: Iterator[int] = field(default_factory=itertools.count)
    """The sequence numbers of the events to come."""
    _around_text: tuple[bytes, bytes] | None = None
    """What stands before and after the text of a delta, up to its sequence number."""

    def opening(self, transcript: Transcript) -> list[Json]:
        """The response and, where there can be no other item, its message and the message's text, all of them empty."""
        begun = [
            self._response_event("response.created", self._response(transcript, _IN_PROGRESS, [])),
            self._response_event("response.in_progress", self._response(transcript, _IN_PROGRESS, [])),
        ]
        if self.reply_form is None:
            return begun + self._numbered(self._items.begin_message())
        self._reader = ReplyReader(self.reply_form)
        return begun

    def partial(self, transcript: Transcript, piece: Piece) -> bytes:
        """One event a piece of text, or the events of what is certain of it by now, or one of progress."""
        if piece.progress is not None:
            event = self._response_event("response.in_progress", self._response(transcript, _IN_PROGRESS, []))
            event["prompt_progress"] = prompt_progress(piece.progress)
            if self.body.timings_per_token:
                event["timings"] = progress_timings(piece.progress)
            return named_frame(event)
        if self._reader is not None:
            events = [event for part in self._reader.push(piece.text) for event in self._items.add(part)]
            return b"".join(map(named_frame, self._numbered(self._timed(events, transcript))))
        if not piece.text:
            return b""
        if self.body.timings_per_token:
            [event] = self._numbered(self._timed([self._items.text_delta(piece.text)], transcript))
            return named_frame(event)
        if self._around_text is None:
            event = self._items.text_delta("") | {"sequence_number": 0}
            before, _, after = named_frame(event).partition(b'""')  # the first empty string is the text
            self._around_text = before, after.removesuffix(b"0}\n\n")
        before, after = self._around_text
        return before + dump_json(piece.text) + after + b"%d}\n\n" % next(self._numbers)

    def closing(self, transcript: Transcript) -> list[Json]:
        """What was held back, and the open item and the response again, as they have become."""
        status = _status(transcript)
        events: list[Json] = []
        if self._reader is None:
            self._items.text = transcript.text
        else:
            events = [event for part in self._reader.flush() for event in self._items.add(part)]
        if self._items.is_empty:
            events += self._items.begin_message()
        events += self._items.end(status)
        response = self._response(transcript, status, self._items.so_far(status))
        numbered = self._numbered(events)
        return [*numbered, *self._timed([self._response_event("response.completed", response)], transcript)]

    def summary(self, _transcripts: Sequence[Transcript]) -> list[Json]:
        """Nothing: the last event has it all."""
        return []

    def failure(self, transcripts: Sequence[Transcript], error: GenerationFailed) -> list[Json]:
        """The response as far as it came, with the error in it."""
        [transcript] = transcripts
        if self._reader is None:
            self._items.text = transcript.text
        response = self._response(transcript, "failed", self._items.so_far("incomplete"))
        response["error"] = {"code": "server_error", "message": error_message(error)}
        return [self._response_event("response.failed", response)]

    def frame(self, content: Json) -> bytes:
        """An event with its type as its name."""
        return named_frame(content)

    def whole(self, transcripts: Sequence[Transcript]) -> Json:
        """The response."""
        [transcript] = transcripts
        status = _status(transcript)
        parts: list[Part] = [Content(transcript.text)]
        if self.reply_form is not None:
            reader = ReplyReader(self.reply_form)
            parts = [*reader.push(transcript.text), *reader.flush()]
        [response] = self._timed([self._response(transcript, status, output_of(parts, status))], transcript)
        return response

    def _timed(self, events: Sequence[Json], transcript: Transcript) -> list[Json]:
        """Return the events with llama-server's timings, where they are asked for."""
        return [event | {"timings": timings(transcript)} if self.body.timings_per_token else event for event in events]

    def _numbered(self, events: Sequence[Json]) -> list[Json]:
        return [event | {"sequence_number": next(self._numbers)} for event in events]

    def _response_event(self, kind: str, response: Json) -> Json:
        return {"type": kind, "response": response, "sequence_number": next(self._numbers)}

    def _response(self, transcript: Transcript, status: str, output: list[Json]) -> Json:
        sampling = transcript.request.sampling
        has_ended = status not in (_IN_PROGRESS, "failed")
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
            "output": output,
            "parallel_tool_calls": self.body.parallel_tool_calls is not False,
            "previous_response_id": None,
            "reasoning": {"effort": self.body.reasoning.get("effort"), "summary": self.body.reasoning.get("summary")},
            "store": False,
            "temperature": sampling.temperature,
            "text": {"format": self.body.text.get("format") or {"type": "text"}},
            "tool_choice": "auto" if self.body.tool_choice is None else self.body.tool_choice,
            "tools": self.body.tools,
            "top_p": sampling.top_p,
            "truncation": "disabled",
            "usage": usage(transcript, num_thinking_tokens(self.reply_form, transcript)) if has_ended else None,
        }


def _status(transcript: Transcript) -> str:
    return "incomplete" if transcript.reason is FinishReason.LIMIT else "completed"


def usage(transcript: Transcript, num_reasoning: int) -> Json:
    """Return the token counts of an answer, of which so many are thinking, under the names of this API."""
    num_prompt, num_generated = transcript.num_prompt, transcript.num_generated
    return {
        "input_tokens": num_prompt,
        "input_tokens_details": {"cached_tokens": transcript.request.num_cached, "cache_write_tokens": 0},
        "output_tokens": num_generated,
        "output_tokens_details": {"reasoning_tokens": num_reasoning},
        "total_tokens": num_prompt + num_generated,
    }
