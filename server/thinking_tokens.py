"""How many tokens of an answer are thinking, for the usage that OpenAI's APIs report: those that begin within it, and
so not those of its tags.
"""

from itertools import accumulate

from server.replies.reasoning import thinking_span
from server.replies.transcript import Transcript
from server.reply import ReplyForm


def num_thinking_tokens(form: ReplyForm | None, transcript: Transcript) -> int:
    """Return the number of tokens of thinking in an answer that has ended; 0 where thinking is not told apart."""
    if form is None or form.reasoning is None:
        return 0
    span = thinking_span(transcript.text, form.reasoning, is_begun=form.is_reasoning_begun, interrupts=form.interrupts)
    detokenizer = transcript.choice.detokenizer()
    sizes = [len(detokenizer.push(sample.token_id)) for sample in transcript.samples]
    return sum(start in span for start in accumulate(sizes[:-1], initial=0)) if sizes else 0
