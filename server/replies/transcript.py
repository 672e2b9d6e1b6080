"""One answer as it grows: from sampled tokens to text, with stop strings, and the numbers that answers report.

Pure: events in, pieces out. It knows no dialect and sends nothing.
"""

from dataclasses import dataclass

from model.tokens.line_indent import LineIndent
from model.tokens.stop_strings import StopStrings
from scheduler.batch import Sample
from scheduler.events import Finished, FinishReason, PromptComputed, TokenSampled
from scheduler.loop import TokenStream
from server.generation import Choice


@dataclass(frozen=True, slots=True)
class Progress:
    """How much of a prompt is computed."""

    num_total: int
    num_cached: int
    num_computed: int
    """Cached tokens included."""
    duration_ms: float
    """Since the prompt began to be computed."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Text that can be shown, and the tokens that it is made of."""

    text: str
    samples: tuple[Sample, ...]
    num_generated: int
    """Tokens generated up to here; by the time a slow client is sent the piece there may be more."""
    progress: Progress | None = None
    """Of a piece without text, which comes before the first token."""


class Transcript:
    """The answer to one request so far."""

    def __init__(self, choice: Choice, stream: TokenStream) -> None:
        rules = choice.rules
        self.choice = choice
        self.request = choice.request
        self.stream = stream
        self.text = ""
        self.received: list[Sample] = []
        """Every generated token, those of a stop string included."""
        self.samples: list[Sample] = []
        """The tokens whose text was shown."""
        self.reason: FinishReason | None = None
        self.stopping_word = ""
        self.first_token_s = 0.0
        self.last_token_s = 0.0
        self.slot_id = -1
        """The slot that computed the newest token."""
        self._rules = rules
        self._detokenizer = choice.detokenizer()
        self._stop = StopStrings(rules.stop)
        self._indent = LineIndent(rules.min_indent)
        self._shows_all = not rules.stop and not rules.min_indent
        self._held: list[Sample] = []
        self._num_prompt_shown = -1

    def progress(self, event: PromptComputed) -> Piece | None:
        """Take note of the prompt; None where no more of it is computed than was told already."""
        if event.num_computed <= self._num_prompt_shown:
            return None
        self._num_prompt_shown = event.num_computed
        request = self.request
        started_s = event.now if request.admitted_s is None else request.admitted_s
        duration_ms = 1000 * (event.now - started_s)
        return Piece("", (), 0, Progress(self.num_prompt, request.num_cached, event.num_computed, duration_ms))

    def add(self, event: TokenSampled) -> Piece | None:
        """Take a token; return what of the text can be shown now, None where all of it is held back.

        Text is held back while it ends in an unfinished character or in what may become a stop string. Where a stop
        string is complete, `reason` is WORD afterwards, and the answer ends with it; where a line is not indented
        enough, or the time for generation is over, it is LIMIT: the answer ends before that line, or with this token.
        """
        token_id = event.sample.token_id
        if not self.received:
            self.first_token_s = event.now
        self.last_token_s = event.now
        if self.request.slot_id is not None:
            self.slot_id = self.request.slot_id
        self.received.append(event.sample)
        self._held.append(event.sample)
        text = self._feed(self._text_of(token_id))
        if self._is_out_of_time(text) and token_id not in self.request.eog_ids:
            return self._complete(text, FinishReason.LIMIT)
        return self._show(text)

    def finish(self, event: Finished) -> Piece | None:
        """Take the end of the request; return the rest of the text and the tokens that were not shown yet, None
        where there is neither.
        """
        if event.reason is FinishReason.LIMIT and not self.received:  # no token was wanted
            self.first_token_s = self.last_token_s = event.now
        return self._complete("", event.reason)

    def _text_of(self, token_id: int) -> str:
        if token_id in self.request.eog_ids and not self._rules.keeps_stop:
            return ""
        return self._detokenizer.push(token_id)

    def _is_out_of_time(self, text: str) -> bool:
        return 0 < self._rules.max_generation_ms < self.generation_ms and ("\n" in text or "\n" in self.text)

    def _complete(self, text: str, reason: FinishReason) -> Piece | None:
        rest = text + (self._feed(self._detokenizer.flush()) if self.reason is None else "")
        if self.reason is None:
            rest += self._cut(self._stop.flush())
        if self.reason is not None:
            return self._show(rest)
        self.reason = reason
        return self._show(rest) or (self._release("") if self._held else None)

    def _feed(self, text: str) -> str:
        if self._shows_all:
            return text
        if self.num_generated <= self.request.min_new_tokens:  # too early for a stop string
            return self._cut(text)
        shown, hit = self._stop.push(text)
        shown = self._cut(shown)
        if hit is None or self.reason is not None:
            return shown
        self.stopping_word = hit
        self.reason = FinishReason.WORD
        return shown + hit if self._rules.keeps_stop else shown

    def _cut(self, text: str) -> str:
        """Return the text up to a line that ends the answer; `reason` is LIMIT where there is one."""
        kept, is_over = self._indent.push(text)
        if is_over:
            self.reason = FinishReason.LIMIT
        return kept

    def _show(self, text: str) -> Piece | None:
        return self._release(text) if text else None

    def _release(self, text: str) -> Piece:
        piece = Piece(text, tuple(self._held), self.num_generated)
        self._held.clear()
        self.samples += piece.samples
        self.text += text
        return piece

    @property
    def is_complete(self) -> bool:
        """Whether nothing more comes; then `reason` says why."""
        return self.reason is not None

    @property
    def token_ids(self) -> list[int]:
        """The generated tokens, those of a stop string included."""
        return [sample.token_id for sample in self.received]

    @property
    def num_generated(self) -> int:
        """Tokens generated so far."""
        return len(self.received)

    @property
    def num_prompt(self) -> int:
        """Tokens of the prompt."""
        return len(self.request.prompt)

    @property
    def prompt_ms(self) -> float:
        """From the first admission to the first token, or the end without any, so without the time in the queue."""
        started_s = self.request.admitted_s
        return 0.0 if started_s is None else 1000 * max(self.first_token_s - started_s, 0.0)

    @property
    def generation_ms(self) -> float:
        """From the first token to the last."""
        return 1000 * (self.last_token_s - self.first_token_s)
