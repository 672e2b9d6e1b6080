"""How an answer looks in OpenAI's two forms, text completion and chat, with the additions that llama-server makes. Key
order as there.

Unlike llama-server, a stream carries usage only where it was asked for: some load tools take every chunk for a token.
"""

import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from scheduler.batch import Sample
from scheduler.events import FinishReason
from server.adapters.registry import ServedList
from server.best_of import best_of
from server.engine import Engine
from server.errors import GenerationFailed, dump_json, error_body
from server.native_format import NativeDialect, probability, progress_timings, prompt_progress, timings
from server.openai.replies import ChoiceReader, delta_of, message_of
from server.openai.token_lists import TokenLists, joined
from server.replies.parts import Reply
from server.replies.transcript import Piece, Progress, Transcript
from server.reply import ReplyForm, ReplyReader, read_reply
from server.schemas import GenerationBody
from server.shapes.generated_answers import LogprobLists
from server.streaming import Json, frame
from server.thinking_tokens import num_thinking_tokens
from server.version import BUILD

DONE = b"data: [DONE]\n\n"


@dataclass(frozen=True, slots=True)
class OpenAIDialect:
    """Frames and bodies of `/v1/completions` and `/v1/chat/completions`."""

    engine: Engine
    body: GenerationBody
    served: ServedList
    form: Literal["text", "chat"]
    echoes: Sequence[str] = ()
    """The prompts, where answers begin with them."""
    reply_form: ReplyForm | None = None
    has_token_lists: bool = False
    """Whether log-probabilities are also in OpenAI's form for texts."""
    end_of_stream: bytes = DONE
    answer_id: str = field(default_factory=lambda: "chatcmpl-" + secrets.token_hex(16))
    created_s: int = field(default_factory=lambda: int(time.time()))
    _around_text: dict[int, tuple[bytes, bytes]] = field(default_factory=dict)
    """What stands before and after the text of each choice's chunks, where nothing else in them changes."""
    _readers: dict[int, ChoiceReader] = field(default_factory=dict)
    """Of each choice, where there is a form."""
    _token_lists: dict[int, TokenLists] = field(default_factory=dict)
    """Of each choice of a stream, where they are wanted and it has begun."""

    def opening(self, transcript: Transcript) -> list[Json]:
        """In chat the role comes first, in text the prompt where it is echoed."""
        if self.form == "text":
            echo = self._echo(transcript)
            is_later = transcript.request.prompt_logprobs is not None
            return [self._chunk(transcript, {"text": echo})] if echo and not is_later else []
        return [self._chunk(transcript, {"role": "assistant", "content": None})]

    def partial(self, transcript: Transcript, piece: Piece) -> bytes:
        """One chunk a piece of text, of what is certain of it by now, or of progress."""
        around = self._around_text.get(transcript.choice.index)
        if around is not None and piece.text:
            return around[0] + dump_json(piece.text) + around[1]
        if piece.progress is not None:
            return frame(self._progress_chunk(transcript, piece.progress))
        if self.reply_form is not None:
            return self._read_piece(self.reply_form, transcript, piece)
        if self._has_more_than_text:
            return b"".join(map(frame, self._full_chunks(transcript, piece)))
        if not piece.text:
            return b""
        chunk = self._chunk(transcript, self._delta(""))
        before, _, after = frame(chunk).partition(b'""')  # the first empty string is the text
        self._around_text[transcript.choice.index] = before, after
        return before + dump_json(piece.text) + after

    @property
    def _is_verbose(self) -> bool:
        """What the body says, else what the server was started with."""
        body = self.body
        return body.verbose if "verbose" in body.model_fields_set else self.engine.settings.verbose

    @property
    def _has_more_than_text(self) -> bool:
        body = self.body
        is_verbose = self._is_verbose and self.form == "text"
        is_counted = body.timings_per_token or body.stream_options.continuous_usage_stats
        return body.num_logprobs is not None or is_counted or is_verbose

    def _progress_chunk(self, transcript: Transcript, progress: Progress) -> Json:
        delta: Json = {"text": ""} if self.form == "text" else {"role": "assistant", "content": None}
        chunk = self._chunk(transcript, delta) | {"prompt_progress": prompt_progress(progress)}
        return chunk | {"timings": progress_timings(progress)} if self.body.timings_per_token else chunk

    def _echo(self, transcript: Transcript) -> str:
        return self.echoes[transcript.choice.prompt_index] if self.echoes else ""

    def _native(self, num_answers: int = 1) -> NativeDialect:
        return NativeDialect(self.engine, self.body, self.served, has_many=num_answers > 1)

    def _read_piece(self, form: ReplyForm, transcript: Transcript, piece: Piece) -> bytes:
        choice = self._choice_reader(form, transcript)
        choice.samples += piece.samples
        delta = delta_of(choice.reader.push(piece.text))
        if not delta:
            return b""
        shown = replace(piece, samples=tuple(choice.samples))
        choice.samples.clear()
        return frame(self._full_chunk(transcript, shown, delta))

    def _choice_reader(self, form: ReplyForm, transcript: Transcript) -> ChoiceReader:
        return self._readers.setdefault(transcript.choice.index, ChoiceReader(ReplyReader(form)))

    def _full_chunks(self, transcript: Transcript, piece: Piece) -> list[Json]:
        echo = self._scored_echo(transcript) if self.has_token_lists else []
        is_empty = not piece.text and not self._is_counted(piece.samples)
        return echo if is_empty else [*echo, self._full_chunk(transcript, piece, self._delta(piece.text))]

    def _is_counted(self, samples: Sequence[Sample]) -> bool:
        """Whether tokens say something though they have no text, as one that ends an answer."""
        return bool(samples) and self.body.num_logprobs is not None

    def _full_chunk(self, transcript: Transcript, piece: Piece, delta: Json) -> Json:
        chunk = self._chunk(transcript, delta, logprobs=self._next_logprobs(transcript, piece.samples))
        if self._is_verbose and self.form == "text":
            chunk["__verbose"] = self._native().piece(transcript, piece)
        if self.body.stream_options.continuous_usage_stats:
            chunk["usage"] = usage([transcript], piece.num_generated)
        if self.body.timings_per_token:
            chunk["timings"] = timings(transcript)
        return chunk

    def _delta(self, text: str) -> Json:
        return {"content": text} if self.form == "chat" else {"text": text}

    def closing(self, transcript: Transcript) -> list[Json]:
        """The chunk with the reason, and no text; before it, what of the reply was held back."""
        delta: Json = {} if self.form == "chat" else {"text": ""}
        if self.reply_form is None:
            echo = self._scored_echo(transcript) if self.has_token_lists else []
            return [*echo, self._last_chunk(transcript, delta, finish_reason(transcript))]
        choice = self._choice_reader(self.reply_form, transcript)
        rest = delta_of(choice.reader.flush())
        logprobs = self._next_logprobs(transcript, choice.samples)
        is_empty = not rest and not self._is_counted(choice.samples)
        held = [] if is_empty else [self._chunk(transcript, rest, logprobs=logprobs)]
        return [*held, self._last_chunk(transcript, delta, finish_reason(transcript, choice.reader.reply))]

    def _last_chunk(self, transcript: Transcript, delta: Json, reason: str) -> Json:
        chunk = self._chunk(transcript, delta, reason)
        if self._is_verbose:
            chunk["__verbose"] = self._native().result(transcript, is_stream=True)
        if self.body.stream_options.continuous_usage_stats:
            chunk["usage"] = self._usage([transcript])
        if not self.body.stream_options.include_usage:
            chunk["timings"] = timings(transcript)
        return chunk

    def summary(self, transcripts: Sequence[Transcript]) -> list[Json]:
        """The usage of all choices, without choices, where it was asked for."""
        if not self.body.stream_options.include_usage:
            return []
        return [
            self._envelope([], is_chunk=True)
            | {
                "usage": self._usage(transcripts),
                "timings": timings(transcripts[-1]),
            }
        ]

    def _usage(self, transcripts: Sequence[Transcript]) -> Json:
        """Return what answers that have ended took, that of thinking apart where a model may think."""
        if self.reply_form is None or self.reply_form.reasoning is None:
            return usage(transcripts)
        num_reasoning = sum(num_thinking_tokens(self.reply_form, transcript) for transcript in transcripts)
        return usage(transcripts) | {"completion_tokens_details": {"reasoning_tokens": num_reasoning}}

    def failure(self, _transcripts: Sequence[Transcript], error: GenerationFailed) -> list[Json]:
        """The error as it would be without a stream."""
        return [error_body(error)]

    def frame(self, content: Json) -> bytes:
        """Every frame is an event without a name."""
        return frame(content)

    def whole(self, transcripts: Sequence[Transcript]) -> Json:
        """One object with all choices."""
        given = best_of(transcripts, self.body.n)
        envelope = self._envelope([self._choice(transcript) for transcript in given], is_chunk=False)
        answer_id = envelope.pop("id")
        verbose: Json = {"__verbose": self._native(len(given)).whole(given)} if self._is_verbose else {}
        return {**envelope, "usage": self._usage(transcripts), "id": answer_id, **verbose, "timings": timings(given[0])}

    def _choice(self, transcript: Transcript) -> Json:
        index = transcript.choice.index
        logprobs = self._logprobs(transcript.samples)
        if logprobs is not None and self.has_token_lists:
            logprobs |= self._whole_lists(transcript)
        if self.form == "text":
            reason, text = finish_reason(transcript), self._echo(transcript) + transcript.text
            return {"text": text, "index": index, "logprobs": logprobs, "finish_reason": reason}
        reply = read_reply(self.reply_form, transcript.text)
        reason = finish_reason(transcript, reply)
        choice: Json = {"finish_reason": reason, "index": index, "message": message_of(reply)}
        return choice | {"logprobs": logprobs} if logprobs is not None else choice

    def _chunk(
        self, transcript: Transcript, delta: Json, reason: str | None = None, logprobs: Json | None = None
    ) -> Json:
        index = transcript.choice.index
        if self.form == "text":
            choice: Json = {**delta, "index": index, "logprobs": logprobs, "finish_reason": reason}
        else:
            choice = {"finish_reason": reason, "index": index, "delta": delta}
            if logprobs is not None:
                choice["logprobs"] = logprobs
        return self._envelope([choice], is_chunk=True)

    def _envelope(self, choices: list[Json], *, is_chunk: bool) -> Json:
        kind = "text_completion" if self.form == "text" else "chat.completion.chunk" if is_chunk else "chat.completion"
        envelope: Json = {"choices": choices, "created": self.created_s}
        if kind == "chat.completion.chunk":  # llama-server's order differs from form to form
            envelope["id"] = self.answer_id
        return {
            **envelope,
            "model": self.served.model or self.engine.model.name,
            "system_fingerprint": BUILD,
            "object": kind,
            "id": self.answer_id,
        }

    def _whole_lists(self, transcript: Transcript) -> LogprobLists:
        lists = TokenLists(transcript.choice, self._echo(transcript))
        generated = lists.of_generated(transcript.samples)
        request = transcript.request
        return generated if request.prompt_logprobs is None else joined(lists.of_prompt(request), generated)

    def _scored_echo(self, transcript: Transcript) -> list[Json]:
        """Begin the lists of a choice; the chunk of its prompt, where that has log-probabilities."""
        index = transcript.choice.index
        if index in self._token_lists:
            return []
        echo = self._echo(transcript)
        lists = self._token_lists[index] = TokenLists(transcript.choice, echo)
        if transcript.request.prompt_logprobs is None:
            return []
        logprobs: Json = {"content": [], **lists.of_prompt(transcript.request)}
        return [self._chunk(transcript, {"text": echo}, logprobs=logprobs)]

    def _next_logprobs(self, transcript: Transcript, samples: Sequence[Sample]) -> Json | None:
        """Return those of the tokens that come next in a stream."""
        logprobs = self._logprobs(samples) if samples else None
        if logprobs is not None and self.has_token_lists:
            logprobs |= self._token_lists[transcript.choice.index].of_generated(samples)
        return logprobs

    def _logprobs(self, samples: Sequence[Sample]) -> Json | None:
        if self.body.num_logprobs is None:
            return None
        tokenizer, is_post_sampling = self.served.tokenizer, self.body.post_sampling_probs
        return {"content": [probability(tokenizer, sample, is_post_sampling=is_post_sampling) for sample in samples]}


def finish_reason(transcript: Transcript, reply: Reply | None = None) -> str:
    """Return OpenAI's word for why the answer ended."""
    if transcript.reason is FinishReason.LIMIT:
        return "length"
    return "tool_calls" if reply is not None and reply.calls else "stop"


def usage(transcripts: Sequence[Transcript], num_generated: int | None = None) -> Json:
    """Return the token counts of the answers together. A prompt counts once, however many choices it has;
    `num_generated` is what was generated up to some point, None where all of it counts.
    """
    prompts = {transcript.choice.prompt_index: transcript for transcript in reversed(transcripts)}
    num_prompt = sum(transcript.num_prompt for transcript in prompts.values())
    if num_generated is None:
        num_generated = sum(transcript.num_generated for transcript in transcripts)
    return {
        "completion_tokens": num_generated,
        "prompt_tokens": num_prompt,
        "total_tokens": num_prompt + num_generated,
        "prompt_tokens_details": {"cached_tokens": sum(item.request.num_cached for item in prompts.values())},
    }
