"""The life of an answer: submit its requests, turn their events into frames or one body, and free everything on every
way out.

Headers go out when the requests are accepted, before any token. A client that leaves, at any stage and in either form
of answer, is noticed by `receive`, and the `finally` at the end of `Answer.__call__` gives slot, blocks and adapters
back. How frames look is the dialect's business. An answer from the response cache takes the same way as a new one, but
for the step loop.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from starlette.types import Receive, Scope, Send

from model.detokenizer import Detokenizer
from model.stop_strings import StopStrings
from scheduler.errors import QueueFull, ShuttingDown
from scheduler.events import Finished, FinishReason
from scheduler.loop import TokenStream
from server.engine import Engine
from server.errors import GenerationFailed, JsonResponse, ServerBusy, TimeUp, dump_json, error_body
from server.generation import RANDOM_SEED, Choice
from server.response_cache import AnswerKey, StoredAnswer, answer_key, is_deterministic, replay
from server.schemas import GenerationBody
from server.transcript import Piece, Transcript

Json: TypeAlias = dict[str, object]


class Dialect(Protocol):
    """How an answer looks: llama-server's native form, OpenAI's text completion or chat."""

    @property
    def end_of_stream(self) -> bytes:
        """What follows the last frame."""
        ...

    def opening(self, transcript: Transcript) -> list[Json]:
        """Return the frames of a choice before its first token."""
        ...

    def partial(self, transcript: Transcript, piece: Piece) -> list[Json]:
        """Return the frames for a piece of text."""
        ...

    def closing(self, transcript: Transcript) -> list[Json]:
        """Return the frames at the end of a choice."""
        ...

    def summary(self, transcripts: Sequence[Transcript]) -> list[Json]:
        """Return the frames after the end of all choices."""
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
        timeout_s = self.engine.settings.request_timeout
        left_s = max(timeout_s - self.choices[0].served.waited_s, 0.0)
        timer = asyncio.get_running_loop().call_later(left_s, self._time_out, transcripts) if timeout_s else None
        try:
            self._submit_all(transcripts)
            if self.body.stream:
                await unless_disconnected(self._send_stream(transcripts, send), receive)
            else:
                await unless_disconnected(self._send_whole(transcripts, scope, receive, send), receive)
        finally:
            if timer is not None:
                timer.cancel()
            for transcript in transcripts:
                self.engine.loop.end(transcript.request.request_id, FinishReason.ABORT)
            for choice in self.choices:
                choice.served.release()

    def _submit_all(self, transcripts: list[Transcript]) -> None:
        """Begin every choice and append it to `transcripts`. Raises a refusal at the first that is not accepted."""
        for choice in self.choices:
            stream = self._replay(choice) or self._submit(choice, len(self.choices) - len(transcripts))
            detokenizer, stop = Detokenizer(choice.served.tokenizer), StopStrings(self.body.stop)
            transcripts.append(Transcript(choice, stream, detokenizer, stop, self.body.t_max_predict_ms))

    def _submit(self, choice: Choice, num_missing: int) -> TokenStream:
        """Submit a choice; `num_missing` are still to be submitted with it."""
        try:
            return self.engine.loop.submit(choice.request)
        except QueueFull as error:
            retry_after_s = self.engine.departures.seconds_until(num_missing, time.monotonic())
            raise ServerBusy(str(error), retry_after_s) from error

    def _replay(self, choice: Choice) -> TokenStream | None:
        """Return the stream of an answer that is stored; None where there is none. Raises ShuttingDown."""
        key = self._key_of(choice)
        if key is None:
            return None
        answer = self.engine.responses.get(key)
        self.engine.metrics.count_response_query(is_hit=answer is not None)
        if answer is None:
            return None
        if not self.engine.loop.is_accepting:
            raise ShuttingDown
        return replay(choice.request, answer, time.monotonic())

    def _remember(self, transcript: Transcript) -> None:
        """Store an answer for the next client that asks for it, where nothing but its request has shaped it."""
        key = self._key_of(transcript.choice)
        num_left = self.engine.loop.scheduler.limits.max_context - transcript.num_prompt
        match transcript.reason:
            case FinishReason.EOS | FinishReason.WORD:
                is_whole = True
            case FinishReason.LIMIT:  # of tokens, or of time
                is_whole = transcript.num_generated >= min(transcript.request.max_new_tokens, num_left)
            case _:
                is_whole = False
        if key is not None and transcript.reason is not None and is_whole:
            self.engine.responses.put(key, StoredAnswer(tuple(transcript.received), transcript.reason))

    def _key_of(self, choice: Choice) -> AnswerKey | None:
        """Return what an answer is stored under; None where it is not to be stored."""
        if not self.engine.responses.is_on:
            return None
        seed = self.engine.settings.seed if self.body.seed is None else self.body.seed
        is_seeded = seed % 2**32 != RANDOM_SEED
        if not is_deterministic(choice.request, is_seeded=is_seeded, has_time_limit=self.body.t_max_predict_ms > 0):
            return None
        return answer_key(choice.request, self.body.stop, choice.served.tokenizer)

    def _time_out(self, transcripts: Sequence[Transcript]) -> None:
        """End all choices with what they have, or with an error where none has anything."""
        has_any = any(transcript.request.output for transcript in transcripts)
        reason = FinishReason.LIMIT if has_any else FinishReason.TIMEOUT
        message = f"no token was generated within {self.engine.settings.request_timeout:g} s; try again later"
        for transcript in transcripts:
            self.engine.loop.end(transcript.request.request_id, reason, "" if has_any else message)

    async def _send_whole(self, transcripts: Sequence[Transcript], scope: Scope, receive: Receive, send: Send) -> None:
        async with aclosing(self._follow_all(transcripts)) as pieces:
            async for _ in pieces:
                pass
        await JsonResponse(self.dialect.whole(transcripts))(scope, receive, send)

    async def _send_stream(self, transcripts: Sequence[Transcript], send: Send) -> None:
        headers = [
            (b"content-type", b"text/event-stream"),
            (b"cache-control", b"no-cache"),
            (b"x-accel-buffering", b"no"),
        ]
        await send({"type": "http.response.start", "status": 200, "headers": headers})

        async def send_frames(frames: Sequence[Json]) -> None:
            if frames:
                await send({"type": "http.response.body", "body": b"".join(map(_frame, frames)), "more_body": True})

        try:
            for transcript in transcripts:
                await send_frames(self.dialect.opening(transcript))
            async with aclosing(self._follow_all(transcripts)) as pieces:
                async for transcript, piece in pieces:
                    if piece is None:
                        await send_frames(self.dialect.closing(transcript))
                    else:
                        await send_frames(self.dialect.partial(transcript, piece))
            await send_frames(self.dialect.summary(transcripts))
            last = self.dialect.end_of_stream
        except GenerationFailed as error:
            last = _frame(error_body(error))
        await send({"type": "http.response.body", "body": last, "more_body": False})

    async def _follow(self, transcript: Transcript) -> AsyncIterator[Piece]:
        """Yield the pieces of one answer. Raises GenerationFailed."""
        async for event in transcript.stream:
            if isinstance(event, Finished):
                if event.reason is FinishReason.ERROR:
                    raise GenerationFailed(event.message)
                if event.reason is FinishReason.TIMEOUT:
                    raise TimeUp(event.message)
                piece = transcript.finish(event)
            else:
                piece = transcript.add(event)
            if transcript.reason is not None:
                # At once, however slowly the client reads.
                self.engine.loop.end(transcript.request.request_id, transcript.reason)
                self._remember(transcript)
            if piece is not None:
                yield piece
            if transcript.reason is not None:
                return

    async def _follow_all(self, transcripts: Sequence[Transcript]) -> AsyncGenerator[tuple[Transcript, Piece | None]]:
        """Yield the pieces of all answers as they come, and (transcript, None) at the end of each. Raises
        GenerationFailed.
        """
        arrived: asyncio.Queue[tuple[int, Piece | None]] = asyncio.Queue()

        async def pump(position: int) -> None:
            try:
                async for piece in self._follow(transcripts[position]):
                    arrived.put_nowait((position, piece))
            finally:
                arrived.put_nowait((position, None))

        tasks = [asyncio.create_task(pump(position)) for position in range(len(transcripts))]
        try:
            for _ in transcripts:
                while (item := await arrived.get())[1] is not None:
                    yield transcripts[item[0]], item[1]
                await tasks[item[0]]  # Raises what ended it.
                yield transcripts[item[0]], None
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


def _frame(content: Json) -> bytes:
    return b"data: " + dump_json(content) + b"\n\n"


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
