"""The log-probabilities of a text completion as OpenAI's API has them: parallel lists over its tokens, which are those
of the prompt, too, where the text begins with it.

Source: OpenAI's API reference, the object of completions (legacy). Its log-probabilities of a prompt begin with the
second token; the first has none.
"""

from collections.abc import Sequence
from itertools import accumulate

from model.tokens.detokenizer import Detokenizer
from model.tokens.tokenizer import Tokenizer
from scheduler.batch import Sample
from scheduler.request import Request
from server.generation import Choice
from server.native_format import finite
from server.shapes.generated_answers import LogprobLists


class TokenLists:
    """The lists of one choice, piece by piece."""

    def __init__(self, choice: Choice, echo: str) -> None:
        """`echo` is what its text begins with."""
        self._tokenizer = choice.served.tokenizer
        self._echo = echo
        self._end = len(echo)
        self._detokenizer = choice.detokenizer()

    def of_prompt(self, request: Request) -> LogprobLists:
        """Return the lists of the tokens of the prompt."""
        whole = Detokenizer(self._tokenizer, render_special=True)
        sizes = [len(whole.push(token_id)) for token_id in request.prompt]
        # What the tokenizer has put in front, a BOS or a blank, is not in the text that was sent.
        begin = len(self._echo) - sum(sizes) - len(whole.flush())
        starts = accumulate(sizes[:-1], initial=begin)
        offsets = [min(max(start, 0), len(self._echo)) for start in starts]
        first: LogprobLists = {
            "tokens": [token_name(self._tokenizer, request.prompt[0])],
            "token_logprobs": [None],
            "top_logprobs": [None],
            "text_offset": offsets[:1],
        }
        return joined(first, self._lists(request.prompt_scores, offsets[1:]))

    def of_generated(self, samples: Sequence[Sample]) -> LogprobLists:
        """Return the lists of the tokens that come next."""
        sizes = (len(self._detokenizer.push(sample.token_id)) for sample in samples)
        *offsets, self._end = accumulate(sizes, initial=self._end)
        return self._lists(samples, offsets)

    def _lists(self, samples: Sequence[Sample], offsets: list[int]) -> LogprobLists:
        return {
            "tokens": [token_name(self._tokenizer, sample.token_id) for sample in samples],
            "token_logprobs": [_logprob(sample) for sample in samples],
            "top_logprobs": [self._top(sample) for sample in samples],
            "text_offset": offsets,
        }

    def _top(self, sample: Sample) -> dict[str, float]:
        """Return the most likely tokens, and the one that is there."""
        top: dict[str, float] = {}
        for item in sample.top_logprobs:  # of those that look alike the most likely
            top.setdefault(token_name(self._tokenizer, item.token_id), finite(item.logprob))
        top.setdefault(token_name(self._tokenizer, sample.token_id), _logprob(sample))
        return top


def joined(first: LogprobLists, second: LogprobLists) -> LogprobLists:
    """Return the lists of what comes first and then of the rest."""
    return {
        "tokens": first["tokens"] + second["tokens"],
        "token_logprobs": first["token_logprobs"] + second["token_logprobs"],
        "top_logprobs": first["top_logprobs"] + second["top_logprobs"],
        "text_offset": first["text_offset"] + second["text_offset"],
    }


def token_name(tokenizer: Tokenizer, token_id: int) -> str:
    r"""Return what a token is called: its text, and its bytes as `bytes:\xe2\x82` where they are no text."""
    piece = tokenizer.piece(token_id)
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in piece)


def _logprob(sample: Sample) -> float:
    assert sample.logprob is not None
    return finite(sample.logprob)
