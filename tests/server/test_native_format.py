"""llama-server's form of answers: frames that are written in one go are those that would be made of dictionaries."""

from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.batch import Sample, SamplingParams
from scheduler.loop import TokenStream
from scheduler.request import Request
from server.generation import Choice
from server.native_format import NativeDialect
from server.replies.transcript import Piece, Transcript
from server.schemas import CompletionBody, parse
from server.streaming import frame
from tests.server.fakes import FakeExecutor, base_list, fake_engine, fake_settings

SERVED = base_list()
ENGINE = fake_engine(FakeExecutor(), fake_settings())
REQUEST = Request(0, (), (1, 2, 3), SamplingParams(), 9)
ids = st.integers(0, 2**31)


@settings(deadline=None)
@given(text=st.text(), token_ids=st.lists(ids, max_size=4), index=ids, num_generated=ids, slot_id=st.integers(-1, 99))
def test_a_frame_of_text_is_that_of_its_object(
    text: str, token_ids: list[int], index: int, num_generated: int, slot_id: int
) -> None:
    transcript = Transcript(Choice(index, 0, REQUEST, SERVED), TokenStream(REQUEST))
    transcript.slot_id = slot_id
    piece = Piece(text, tuple(Sample(0, token_id) for token_id in token_ids), num_generated)
    body = parse(CompletionBody, {"prompt": "a", "stream": True})
    dialect = NativeDialect(ENGINE, body, SERVED, has_many=False)
    assert dialect.partial(transcript, piece) == frame(dialect.piece(transcript, piece))
