"""No tokens make a reader of them fail: any vocabulary, any ids, any rules for the text, any form of the reply."""

import copy
from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from model.tokens.tokenizer import Tokenizer
from model.tokens.vocabulary import SPACE, byte_level_piece, sentencepiece_piece
from scheduler.batch import Sample, SamplingParams
from scheduler.events import Finished, FinishReason, PromptComputed, TokenSampled
from scheduler.loop import TokenStream
from scheduler.request import Request
from server.adapters.registry import ServedList
from server.generation import Choice
from server.replies.reasoning import ReasoningTags
from server.replies.transcript import Transcript
from server.reply import ReplyForm, read_reply
from server.text_rules import TextRules
from server.tools import formats
from server.tools.fields import Tool
from server.tools.formats import CallFormat
from tests.model.constraint_parts import make_tokenizer
from tests.server.fakes import base_list, byte_tokenizer

SPECIAL = ("</s>", "<think>", "</think>", "<tool_call>", "</tool_call>")
FORMATS = [form for form in vars(formats).values() if isinstance(form, CallFormat)]
MARKERS = sorted({marker for form in FORMATS for marker in form.markers})
WORDS = (*SPECIAL, *MARKERS, "f", "a", "ab", "\n", " ", "\u00e9", "\u65e5\u672c", '{"name": "f"', "}", "\U0001f600", "")

texts = st.one_of(st.sampled_from(WORDS), st.text(max_size=4))
byte_level = st.sampled_from([chr(0x100 + i) for i in range(0x44)] + list("ab{}<>")).map(byte_level_piece)
sentencepiece = st.one_of(
    st.integers(0, 255).map(lambda byte: f"<0x{byte:02X}>"), texts.map(lambda text: SPACE + text)
).map(sentencepiece_piece)
vocabularies = st.one_of(
    st.just(byte_tokenizer()),
    *(
        st.lists(pieces, min_size=1, max_size=12).map(lambda pieces: make_tokenizer(pieces, SPECIAL))
        for pieces in (byte_level, sentencepiece, texts.map(str.encode), st.binary(max_size=4))
    ),
).map(lambda tokenizer: tokenizer.enlarged(tokenizer.vocab_size + 2))
forms = st.builds(
    ReplyForm,
    reasoning=st.sampled_from([None, ReasoningTags("<think>", "</think>"), ReasoningTags("a", "ab")]),
    is_reasoning_begun=st.booleans(),
    keeps_reasoning=st.booleans(),
    calls=st.sampled_from([None, *FORMATS]),
    may_think=st.booleans(),
    tools=st.just((Tool("f", "", {"properties": {"a": {"type": "string"}, "ab": {"type": "integer"}}}),)),
)
rules = st.builds(
    TextRules,
    stop=st.lists(texts, max_size=3).map(tuple),
    keeps_stop=st.booleans(),
    shows_special=st.booleans(),
    shown_ids=st.frozensets(st.integers(0, 20), max_size=3),
    min_indent=st.integers(0, 3),
    max_generation_ms=st.sampled_from([0, 1, 3]),
)
BASE_LIST = base_list()


def list_with(tokenizer: Tokenizer) -> ServedList:
    """The base model's list, with another tokenizer."""
    served = copy.copy(BASE_LIST)
    served.tokenizer = tokenizer
    return served


def read(transcript: Transcript, ids: Sequence[int], reason: FinishReason) -> str:
    """Let a transcript take tokens, one a millisecond, and the end, as an answer does; return what is shown."""
    shown = []
    transcript.progress(PromptComputed(0, (), 2, 0.0))
    for index, token_id in enumerate(ids):
        if transcript.is_complete:
            break
        piece = transcript.add(TokenSampled(0, (), index, Sample(0, token_id), 0.0, index / 1000))
        shown.append("" if piece is None else piece.text)
    if not transcript.is_complete:
        piece = transcript.finish(Finished(0, (), reason, "", 3, len(ids), 0, 0.0, 99.0))
        shown.append("" if piece is None else piece.text)
    return "".join(shown)


@settings(deadline=None, max_examples=300)
@given(tokenizer=vocabularies, rules=rules, form=forms, min_new_tokens=st.integers(0, 3), draw=st.data())
def test_any_tokens_can_be_read(
    tokenizer: Tokenizer, rules: TextRules, form: ReplyForm, min_new_tokens: int, draw: st.DataObject
) -> None:
    ids = draw.draw(st.lists(st.integers(0, tokenizer.vocab_size - 1), max_size=30))
    request = Request(0, (), (1, 2, 3), SamplingParams(), 100, tokenizer.eog_ids, min_new_tokens)
    transcript = Transcript(Choice(0, 0, request, list_with(tokenizer), rules), TokenStream(request))
    text = read(transcript, ids, draw.draw(st.sampled_from([FinishReason.EOS, FinishReason.LIMIT])))
    assert transcript.is_complete
    assert transcript.text == text
    assert transcript.token_ids == ids[: transcript.num_generated]
    text.encode()  # no half of a surrogate pair, which no answer can carry
    read_reply(form, text).content.encode()
