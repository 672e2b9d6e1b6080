"""How an answer looks in llama-server's native form (`/completion`). Source: that server's documentation; key order
as there.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from model.tokens.tokenizer import Tokenizer
from scheduler.batch import Sample, SamplerChain, SamplingParams
from scheduler.events import FinishReason
from server.adapters.registry import ServedList
from server.best_of import best_of
from server.engine import Engine
from server.errors import GenerationFailed, dump_json, error_body
from server.generation import ignores_eos
from server.replies.transcript import Piece, Progress, Transcript
from server.schemas import GenerationBody
from server.streaming import Json, frame

_STOP_TYPES = {FinishReason.EOS: "eos", FinishReason.WORD: "word", FinishReason.LIMIT: "limit"}
_LOWEST_LOGPROB = -3.4e38
"""Stands for the logarithm of 0, which JSON cannot hold."""
_TEXT_FRAME = (
    b'data: {"index":%d,"content":%b,"tokens":[%b],"stop":false,"id_slot":%d,"tokens_predicted":%d,'
    b'"tokens_evaluated":%d}\n\n'
)
"""The frame of `NativeDialect.piece`, in a third of the time that its JSON takes to be made."""


@dataclass(frozen=True, slots=True)
class NativeDialect:
    """Frames and bodies of `/completion`."""

    engine: Engine
    body: GenerationBody
    served: ServedList
    has_many: bool
    """Whether the answer is an array: several prompts, or several choices."""
    end_of_stream: bytes = b""

    def opening(self, transcript: Transcript) -> list[Json]:
        """Nothing precedes the first token."""
        return []

    def partial(self, transcript: Transcript, piece: Piece) -> bytes:
        """One frame a piece."""
        if self._has_more_than_text or piece.progress is not None:
            return frame(self.piece(transcript, piece))
        return _TEXT_FRAME % (
            transcript.choice.index,
            dump_json(piece.text),
            b",".join(b"%d" % sample.token_id for sample in piece.samples),
            transcript.slot_id,
            piece.num_generated,
            transcript.num_prompt,
        )

    @property
    def _has_more_than_text(self) -> bool:
        return self.body.timings_per_token or bool(self.body.num_logprobs)

    def piece(self, transcript: Transcript, piece: Piece) -> Json:
        """Return what a frame says of a piece."""
        content: Json = {
            "index": transcript.choice.index,
            "content": piece.text,
            "tokens": [sample.token_id for sample in piece.samples],
            "stop": False,
            "id_slot": transcript.slot_id,
            "tokens_predicted": piece.num_generated,
            "tokens_evaluated": transcript.num_prompt,
        }
        if self.body.timings_per_token:
            content["timings"] = progress_timings(piece.progress) if piece.progress else timings(transcript)
        if self.body.num_logprobs:
            content["completion_probabilities"] = self._probabilities(piece.samples)
        if piece.progress is not None:
            content |= {"tokens": [0], "prompt_progress": prompt_progress(piece.progress)}
        return content

    def closing(self, transcript: Transcript) -> list[Json]:
        """The final object, with the text left out: it was sent."""
        return [self.result(transcript, is_stream=True)]

    def summary(self, transcripts: Sequence[Transcript]) -> list[Json]:
        """Nothing follows the final objects."""
        return []

    def failure(self, _transcripts: Sequence[Transcript], error: GenerationFailed) -> list[Json]:
        """The error as it would be without a stream."""
        return [error_body(error)]

    def frame(self, content: Json) -> bytes:
        """Every frame is an event without a name."""
        return frame(content)

    def whole(self, transcripts: Sequence[Transcript]) -> Json | list[Json]:
        """One object, or an array of them."""
        results = [self.result(transcript, is_stream=False) for transcript in best_of(transcripts, self.body.n)]
        return results if self.has_many else results[0]

    def result(self, transcript: Transcript, *, is_stream: bool) -> Json:
        """Return what is said of an answer at its end, or what `response_fields` leave of it."""
        return select(self._result(transcript, is_stream=is_stream), self.body.response_fields)

    def _result(self, transcript: Transcript, *, is_stream: bool) -> Json:
        request = transcript.request
        assert transcript.reason is not None
        tokens = transcript.token_ids if self.body.return_tokens and not is_stream else []
        result: Json = {
            "index": transcript.choice.index,
            "content": "" if is_stream else transcript.text,
            "tokens": tokens,
            "id_slot": transcript.slot_id,
            "stop": True,
            "model": self.engine.model.name,
            "tokens_predicted": transcript.num_generated,
            "tokens_evaluated": transcript.num_prompt,
            "generation_settings": generation_settings(self.engine, self.body, transcript),
            "prompt": self.served.tokenizer.decode(request.prompt),
            "has_new_line": "\n" in transcript.text,
            "truncated": self._is_truncated(transcript),
            "stop_type": _STOP_TYPES.get(transcript.reason, "none"),
            "stopping_word": transcript.stopping_word,
            "tokens_cached": transcript.num_prompt + max(transcript.num_generated - 1, 0) - request.num_dropped,
            "timings": timings(transcript),
        }
        if self.body.num_logprobs and not is_stream:
            result["completion_probabilities"] = self._probabilities(transcript.samples)
        return result

    def _is_truncated(self, transcript: Transcript) -> bool:
        """Whether the context was full: it was shifted, or the answer ended."""
        if transcript.request.num_dropped:
            return True
        num_tokens = transcript.num_prompt + transcript.num_generated
        return transcript.reason is FinishReason.LIMIT and num_tokens >= self.engine.model.n_ctx

    def _probabilities(self, samples: Sequence[Sample]) -> list[Json]:
        is_post_sampling = self.body.post_sampling_probs
        return [probability(self.served.tokenizer, sample, is_post_sampling=is_post_sampling) for sample in samples]


def select(result: Json, paths: Sequence[str]) -> Json:
    """Return only the values at `paths` (`"timings/prompt_n"`), under those paths as keys; all of `result` where
    there are none.
    """
    if not paths:
        return result
    selected: Json = {}
    for path in paths:
        value: object = result
        for name in path.split("/"):
            if not isinstance(value, dict) or name not in value:
                break
            value = value[name]
        else:
            selected[path] = value
    return selected


def timings(transcript: Transcript) -> Json:
    """Return what the prompt and the generation took. Rates of the generation leave the first token out: it came
    with the prompt.
    """
    num_cached = transcript.request.num_cached
    prompt = _prompt_timings(num_cached, transcript.num_prompt - num_cached, transcript.prompt_ms)
    return prompt | _generation_timings(transcript.num_generated, transcript.generation_ms)


def progress_timings(progress: Progress) -> Json:
    """Return what the prompt took so far, before anything is generated."""
    num_computed = progress.num_computed - progress.num_cached
    return _prompt_timings(progress.num_cached, num_computed, progress.duration_ms) | _generation_timings(0, 0.0)


def _prompt_timings(num_cached: int, num_computed: int, duration_ms: float) -> Json:
    return {
        "cache_n": num_cached,
        "prompt_n": num_computed,
        "prompt_ms": duration_ms,
        "prompt_per_token_ms": _ratio(duration_ms, num_computed),
        "prompt_per_second": _ratio(1000 * num_computed, duration_ms),
    }


def _generation_timings(num_generated: int, duration_ms: float) -> Json:
    num_steps = max(num_generated - 1, 0)
    return {
        "predicted_n": num_generated,
        "predicted_ms": duration_ms,
        "predicted_per_token_ms": _ratio(duration_ms, num_steps),
        "predicted_per_second": _ratio(1000 * num_steps, duration_ms),
    }


def prompt_progress(progress: Progress) -> Json:
    """Return how much of the prompt is computed, and in what time."""
    return {
        "total": progress.num_total,
        "cache": progress.num_cached,
        "processed": progress.num_computed,
        "time_ms": progress.duration_ms,
    }


def _ratio(amount: float, divisor: float) -> float:
    return amount / divisor if divisor else 0.0


def probability(tokenizer: Tokenizer, sample: Sample, *, is_post_sampling: bool) -> Json:
    """Return a generated token with its log-probability and the most likely alternatives; with probabilities under
    other names where they are those after the samplers.
    """
    assert sample.logprob is not None
    top = [_token(tokenizer, item.token_id, item.logprob, is_post_sampling) for item in sample.top_logprobs]
    own = _token(tokenizer, sample.token_id, sample.logprob, is_post_sampling)
    return {**own, "top_probs" if is_post_sampling else "top_logprobs": top}


def _token(tokenizer: Tokenizer, token_id: int, logprob: float, is_post_sampling: bool) -> Json:
    piece = tokenizer.piece(token_id)
    token: Json = {"id": token_id, "token": piece.decode("utf-8", errors="replace"), "bytes": list(piece)}
    if is_post_sampling:
        return token | {"prob": math.exp(logprob)}
    return token | {"logprob": finite(logprob)}


def finite(logprob: float) -> float:
    """Return a log-probability as JSON can hold it."""
    return max(logprob, _LOWEST_LOGPROB)


def generation_settings(engine: Engine, body: GenerationBody, transcript: Transcript) -> Json:
    """Return what the answer was generated with: resolved seed and defaults, and the effective adapter list."""
    request = transcript.request
    constraint = transcript.choice.constraint
    return {
        **sampling_settings(request.sampling),
        "stop": list(body.stop),
        "max_tokens": request.max_new_tokens,
        "n_predict": request.max_new_tokens,
        "n_keep": request.shift.num_keep if request.shift else 0,
        "n_discard": body.n_discard,
        "ignore_eos": ignores_eos(engine, body),
        "stream": body.stream,
        "logit_bias": [
            {"bias": None if bias == float("-inf") else bias, "token": token_id}
            for token_id, bias in request.sampling.logit_bias
        ],
        "n_probs": request.sampling.num_logprobs or 0,
        "min_keep": request.sampling.min_keep,
        "grammar": "" if constraint is None else constraint.as_grammar,
        "grammar_lazy": constraint is not None and constraint.triggers is not None,
        "grammar_triggers": body.grammar_triggers if body.grammar_lazy else [],
        "preserved_tokens": sorted(transcript.choice.rules.shown_ids),
        "samplers": list((request.sampling.chain or SamplerChain()).samplers),
        "timings_per_token": body.timings_per_token,
        "post_sampling_probs": request.sampling.post_sampling_probs,
        "lora": transcript.choice.served.scales_of(request.key),
    }


def sampling_settings(sampling: SamplingParams) -> Json:
    """Return the samplers' settings under llama-server's names."""
    chain = sampling.chain or SamplerChain()
    return {
        "seed": sampling.seed,
        "temperature": sampling.temperature,
        "dynatemp_range": chain.dynatemp_range,
        "dynatemp_exponent": chain.dynatemp_exponent,
        "top_k": sampling.top_k,
        "top_p": sampling.top_p,
        "min_p": sampling.min_p,
        "top_n_sigma": chain.top_n_sigma,
        "xtc_probability": chain.xtc_probability,
        "xtc_threshold": chain.xtc_threshold,
        "typical_p": chain.typical_p,
        "repeat_last_n": sampling.repeat_last_n,
        "repeat_penalty": sampling.repeat_penalty,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "dry_multiplier": chain.dry_multiplier,
        "dry_base": chain.dry_base,
        "dry_allowed_length": chain.dry_allowed_length,
        "dry_penalty_last_n": chain.dry_penalty_last_n,
        "dry_sequence_breakers": list(chain.dry_sequence_breakers),
        "mirostat": chain.mirostat,
        "mirostat_tau": chain.mirostat_tau,
        "mirostat_eta": chain.mirostat_eta,
        "adaptive_target": chain.adaptive_target,
        "adaptive_decay": chain.adaptive_decay,
    }
