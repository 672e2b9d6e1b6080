"""The life of an answer: submit its requests, turn their events into frames or one body, and free everything on every
way out.

Events become text as soon as the step loop delivers them, however slowly the client reads; one task of the answer sends
what has become of them. Headers go out when the requests are accepted, before any token. A client that leaves, at any
stage and in either form of answer, is noticed by `receive`, and the `finally` at the end of `Answer.__call__` gives
slot, blocks and adapters back. How frames look is the dialect's business. An answer from the response cache takes the
same way as a new one, but for the step loop.
"""

import asyncio
import time
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeAlias

from starlette.types import Receive, Scope, Send

from scheduler.errors import QueueFull, ShuttingDown
from scheduler.events import FinishReason, PromptComputed, TokenSampled
from scheduler.loop import StreamEvent, TokenStream
from server.edge.heartbeat import COMMENT, Heartbeat
from server.engine import Engine
from server.errors import GenerationFailed, JsonResponse, ServerBusy, TimeUp, Unanswerable, dump_json
from server.generation import RANDOM_SEED, Choice
from server.preparation import prepare
from server.replies.transcript import Piece, Transcript
from server.response_cache import AnswerKey, StoredAnswer, answer_key, is_deterministic, replay
from server.schemas import GenerationBody

Json: TypeAlias = dict[str, object]


class Dialect(Protocol):
    """How an answer looks: llama-server's native form, one of OpenAI's, or Anthropic's."""

    @property
    def end_of_stream(self) -> bytes:
        """What follows the last frame."""
        ...

    def opening(self, transcript: Transcript) -> list[Json]:
        """Return the frames of a choice before its first token."""
        ...

    def partial(self, transcript: Transcript, piece: Piece) -> bytes:
        """Return the frame for a piece of text, as it is sent; b"" where there is none for it."""
        ...

    def closing(self, transcript: Transcript) -> list[Json]:
        """Return the frames at the end of a choice."""
        ...

    def summary(self, transcripts: Sequence[Transcript]) -> list[Json]:
        """Return the frames after the end of all choices."""
        ...

    def failure(self, transcripts: Sequence[Transcript], error: GenerationFailed) -> list[Json]:
        """Return the frames that end a stream in place of all others."""
        ...

    def frame(self, content: Json) -> bytes:
        """Return the server-sent event that carries `content`."""
        ...

    def whole(self, transcripts: Sequence[Transcript]) -> Json | list[Json]:
        """Return the body of an answer that is not streamed."""
        ...


@dataclass(frozen=True, slots=True)
class Answer:
    """An ASGI response that generates what it sends."""

    engine: Engine
    choices: Sequence[Choice]
    body: GenerationBody
    dialect: Dialect

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Generate and send. A refusal by the scheduler is raised before anything is sent."""
        transcripts: list[Transcript] = []
        arrivals = Arrivals()
        timer: asyncio.TimerHandle | None = None
        try:
            new = [choice for choice in self.choices if self._stored(choice) is None]
            await prepare(self.engine.lists, new, receive, self._left_s())
            left_s = self._left_s()
            if left_s is not None:
                timer = asyncio.get_running_loop().call_later(left_s, self._time_out, transcripts)
            self._submit_all(transcripts)
            for transcript in transcripts:
                transcript.stream.read_by(partial(self._read, transcript, arrivals))
            if self.body.stream:
                await unless_disconnected(self._send_stream(transcripts, arrivals, send), receive)
            else:
                await unless_disconnected(self._send_whole(transcripts, arrivals, scope, receive, send), receive)
        finally:
            if timer is not None:
                timer.cancel()
            for transcript in transcripts:
                self.engine.loop.end(transcript.request.request_id, FinishReason.ABORT)
            for choice in self.choices:
                choice.served.release()

    def _left_s(self) -> float | None:
        """Return the seconds that are left to the answer; None where it has no limit."""
        timeout_s = self.engine.settings.request_timeout
        return max(timeout_s - self.choices[0].served.waited_s, 0.0) if timeout_s else None

    def _submit_all(self, transcripts: list[Transcript]) -> None:
        """Begin every choice and append it to `transcripts`. Raises a refusal at the first that is not accepted."""
        for choice in self.choices:
            stream = self._replay(choice) or self._submit(choice, len(self.choices) - len(transcripts))
            transcripts.append(Transcript(choice, stream))

    def _submit(self, choice: Choice, num_missing: int) -> TokenStream:
        """Submit a choice; `num_missing` are still to be submitted with it."""
        try:
            return self.engine.loop.submit(choice.request)
        except QueueFull as error:
            retry_after_s = self.engine.departures.seconds_until(num_missing, time.monotonic())
            raise ServerBusy(str(error), retry_after_s) from error

    def _replay(self, choice: Choice) -> TokenStream | None:
        """Return the stream of an answer that is stored; None where there is none. Raises ShuttingDown."""
        if self._key_of(choice) is None:
            return None
        answer = self._stored(choice)
        self.engine.metrics.count_response_query(is_hit=answer is not None)
        if answer is None:
            return None
        if not self.engine.loop.is_accepting:
            raise ShuttingDown
        return replay(choice.request, answer, time.monotonic())

    def _stored(self, choice: Choice) -> StoredAnswer | None:
        key = self._key_of(choice)
        return None if key is None else self.engine.responses.get(key)

    def _remember(self, transcript: Transcript) -> None:
        """Store an answer for the next client that asks for it, where nothing but its request has shaped it."""
        key = self._key_of(transcript.choice)
        request = transcript.request
        num_left = self.engine.loop.scheduler.limits.max_context - transcript.num_prompt
        num_at_most = request.max_new_tokens if request.shift else min(request.max_new_tokens, num_left)
        match transcript.reason:
            case FinishReason.EOS | FinishReason.WORD:
                is_whole = True
            case FinishReason.LIMIT:  # of tokens, or of time
                is_whole = transcript.num_generated >= num_at_most
            case _:
                is_whole = False
        if key is not None and transcript.reason is not None and is_whole:
            answer = StoredAnswer(tuple(transcript.received), transcript.reason, tuple(request.prompt_scores))
            self.engine.responses.put(key, answer)

    def _key_of(self, choice: Choice) -> AnswerKey | None:
        """Return what an answer is stored under; None where it is not to be stored."""
        if not self.engine.responses.is_on:
            return None
        seed = self.engine.settings.seed if self.body.seed is None else self.body.seed
        is_seeded = seed % 2**32 != RANDOM_SEED
        if not is_deterministic(choice.request, is_seeded=is_seeded, has_time_limit=self.body.t_max_predict_ms > 0):
            return None
        return answer_key(choice.request, choice.rules, choice.served.tokenizer)

    def _time_out(self, transcripts: Sequence[Transcript]) -> None:
        """End all choices with what they have, or with an error where none has anything."""
        has_any = any(transcript.request.output for transcript in transcripts)
        reason = FinishReason.LIMIT if has_any else FinishReason.TIMEOUT
        message = f"no token was generated within {self.engine.settings.request_timeout:g} s; try again later"
        for transcript in transcripts:
            self.engine.loop.end(transcript.request.request_id, reason, "" if has_any else message)

    def _read(self, transcript: Transcript, arrivals: "Arrivals", event: StreamEvent) -> None:
        """Take an event of a request, and let what has become of it arrive."""
        if transcript.is_complete:  # before the request has ended
            return
        if isinstance(event, TokenSampled):
            piece = transcript.add(event)
        elif isinstance(event, PromptComputed):
            piece = transcript.progress(event)
        else:
            if event.reason is FinishReason.ERROR:
                arrivals.fail(GenerationFailed(event.message))
                return
            if event.reason is FinishReason.UNANSWERABLE:
                arrivals.fail(Unanswerable(event.message))
                return
            if event.reason is FinishReason.TIMEOUT:
                arrivals.fail(TimeUp(event.message))
                return
            piece = transcript.finish(event)
        arrivals.put(transcript, piece)
        if transcript.reason is not None:
            self.engine.loop.end(transcript.request.request_id, transcript.reason)
            self._remember(transcript)

    async def _send_whole(
        self, transcripts: Sequence[Transcript], arrivals: "Arrivals", scope: Scope, receive: Receive, send: Send
    ) -> None:
        while not all(transcript.is_complete for transcript in transcripts):
            await arrivals.take()
        response = await self._render(transcripts)
        await response(scope, receive, send)

    async def _render(self, transcripts: Sequence[Transcript]) -> JsonResponse:
        def render() -> JsonResponse:
            return JsonResponse(self.dialect.whole(transcripts))

        # A long prompt with all its log-probabilities is much to write, and would delay everybody's tokens.
        has_scores = any(transcript.request.prompt_scores for transcript in transcripts)
        return await asyncio.to_thread(render) if has_scores else render()

    async def _send_stream(self, transcripts: Sequence[Transcript], arrivals: "Arrivals", send: Send) -> None:
        headers = [
            (b"content-type", b"text/event-stream"),
            (b"cache-control", b"no-cache"),
            (b"x-accel-buffering", b"no"),
        ]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        heartbeat = Heartbeat(self._ping_interval_s, arrivals.wake)
        try:
            await _send_frames(
                b"".join(self._frames(self.dialect.opening(transcript)) for transcript in transcripts), send
            )
            num_left = len(transcripts)
            while num_left:
                items = await arrivals.take()
                frames = [] if items else [COMMENT]
                for transcript, piece, is_last in items:
                    if piece is not None:
                        frames.append(self.dialect.partial(transcript, piece))
                    if is_last:
                        frames.append(self._frames(self.dialect.closing(transcript)))
                        num_left -= 1
                heartbeat.sent()
                await _send_frames(b"".join(frames), send)
            await _send_frames(self._frames(self.dialect.summary(transcripts)), send)
            last = self.dialect.end_of_stream
        except GenerationFailed as error:
            last = self._frames(self.dialect.failure(transcripts, error))
        finally:
            heartbeat.stop()
        await send({"type": "http.response.body", "body": last, "more_body": False})

    @property
    def _ping_interval_s(self) -> int:
        wanted = self.body.sse_ping_interval
        return self.engine.settings.sse_ping_interval if wanted is None else wanted

    def _frames(self, contents: Sequence[Json]) -> bytes:
        return b"".join(self.dialect.frame(content) for content in contents)


class Arrivals:
    """What has become of the events of an answer and was not sent yet, in order."""

    def __init__(self) -> None:
        self._items: list[tuple[Transcript, Piece | None, bool]] = []
        self._failure: GenerationFailed | None = None
        self._taker: asyncio.Future[None] | None = None

    def put(self, transcript: Transcript, piece: Piece | None) -> None:
        """Add a piece, or the end of a choice, or both at once."""
        is_last = transcript.is_complete
        if piece is not None or is_last:
            self._items.append((transcript, piece, is_last))
            self.wake()

    def fail(self, failure: GenerationFailed) -> None:
        """Let `take` raise a failure, after what came before it."""
        self._failure = self._failure or failure
        self.wake()

    async def take(self) -> list[tuple[Transcript, Piece | None, bool]]:
        """Wait until there is something, and return all there is: choice, piece, whether it is the choice's last;
        nothing where `wake` was called meanwhile. One task may wait. Raises GenerationFailed."""
        if not self._items and self._failure is None:
            self._taker = asyncio.get_running_loop().create_future()
            await self._taker
        items, self._items = self._items, []
        if not items and self._failure is not None:
            raise self._failure
        return items

    def wake(self) -> None:
        """Let `take` return, though there may be nothing."""
        if self._taker is not None and not self._taker.done():
            self._taker.set_result(None)


async def _send_frames(frames: bytes, send: Send) -> None:
    if frames:
        await send({"type": "http.response.body", "body": frames, "more_body": True})


def frame(content: Json) -> bytes:
    """Return the server-sent event that carries `content`."""
    return b"data: " + dump_json(content) + b"\n\n"


def named_frame(content: Json) -> bytes:
    """Return the server-sent event that carries `content`, whose `type` is the event's name."""
    return b"event: " + str(content["type"]).encode() + b"\n" + frame(content)


async def unless_disconnected(work: Coroutine[None, None, None], receive: Receive) -> None:
    """Run `work` to its end, or cancel it when the client goes away."""
    working = asyncio.create_task(work)
    watching = asyncio.create_task(_disconnect(receive))
    try:
        await asyncio.wait((working, watching), return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            working.result()
    finally:
        for task in (working, watching):
            task.cancel()
        await asyncio.gather(working, watching, return_exceptions=True)


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
