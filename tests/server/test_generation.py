"""From bodies to scheduler requests."""

import asyncio
import math

import pytest

from scheduler.errors import PromptTooLong
from scheduler.events import FinishReason
from server.engine import Engine
from server.errors import BodyInvalid, FieldInvalid, RequestError
from server.generation import Choice, Prompt, encode_prompt, encode_prompts, make_choices, read_prompts
from server.schemas import CompletionBody, parse
from tests.server.fakes import BOS, EOS, N_CTX, NUM_SLOTS, TURN, FakeExecutor, byte_tokenizer, fake_engine


@pytest.fixture(scope="module")
def engine() -> Engine:
    """Defaults: 8 tokens, seed 1."""
    return fake_engine(FakeExecutor())


def choices(engine: Engine, **body: object) -> list[Choice]:
    """The requests that a body makes for two prompts."""

    async def make() -> list[Choice]:
        fields = parse(CompletionBody, body)
        served = await engine.adapters.acquire(fields.lora, fields.model)
        try:
            return await make_choices(engine, fields, served, [(1, 2), (3,)])
        finally:
            served.release()

    return asyncio.run(make())


@pytest.mark.parametrize(
    ("value", "prompts"),
    [
        ("ab", [("ab",)]),
        ([1, 2], [(1, 2)]),
        ([1, "a"], [(1, "a")]),
        (["a", 1], [("a", 1)]),
        (["a"], [("a",)]),
        (["a", "b"], [("a",), ("b",)]),
        (["a", [1, "b"], {"prompt_string": "c"}], [("a",), (1, "b"), ("c",)]),
        ({"prompt_string": "c"}, [("c",)]),
        ({"prompt_string": "c", "multimodal_data": []}, [("c",)]),
    ],
)
def test_a_prompt_has_many_forms(value: object, prompts: object) -> None:
    assert read_prompts(value) == prompts


@pytest.mark.parametrize(
    ("value", "part"),
    [
        (None, "Field 'prompt'"),
        ([], '"prompt" must not be empty'),
        (5, "Field 'prompt'"),
        (True, "Field 'prompt'"),
        ([1, None], "Field 'prompt[1]'"),
        ([1, [2]], "Field 'prompt[1]'"),
        (["a", True], "Field 'prompt[1]'"),
        (["a", 1.5], "Field 'prompt[1]'"),
        ([["a", {}]], "Field 'prompt[0][1]'"),
        ({}, "Field 'prompt.prompt_string'"),
        ({"prompt_string": "a", "multimodal_data": ["x"]}, "Field 'prompt.multimodal_data'"),
    ],
)
def test_what_is_no_prompt_is_refused(value: object, part: str) -> None:
    with pytest.raises((FieldInvalid, BodyInvalid)) as error:
        read_prompts(value)
    assert part in str(error.value)


@pytest.mark.parametrize(
    ("prompt", "ids"),
    [
        (("ab",), (BOS, 97, 98)),
        (("<s>ab",), (BOS, 97, 98)),
        ((97, 98), (97, 98)),
        ((97, "b"), (97, 98)),
        (("a", TURN, "b"), (BOS, 97, TURN, 98)),
        (("x" * 10_000,), (BOS, *[120] * 10_000)),
    ],
)
def test_the_first_text_gets_bos(prompt: tuple[int | str, ...], ids: tuple[int, ...]) -> None:
    assert asyncio.run(encode_prompt(byte_tokenizer(), prompt, "prompt")) == ids


@pytest.mark.parametrize("token_id", [-1, 259, 10**20])
def test_a_token_the_model_does_not_have_is_refused(token_id: int) -> None:
    with pytest.raises(FieldInvalid, match=r"prompt\[1\].*0 to 258"):
        asyncio.run(encode_prompt(byte_tokenizer(), (1, token_id), "prompt"))


def test_each_prompt_has_its_choices_with_seeds_of_their_own(engine: Engine) -> None:
    made = choices(engine, n=2, seed=2**32 - 2)
    assert [choice.index for choice in made] == [0, 1, 2, 3]
    assert [choice.prompt_index for choice in made] == [0, 0, 1, 1]
    assert [choice.request.prompt for choice in made] == [(1, 2), (1, 2), (3,), (3,)]
    assert [choice.request.sampling.seed for choice in made] == [2**32 - 2, 0, 2**32 - 2, 0]
    assert len({choice.request.request_id for choice in made}) == 4


@pytest.mark.parametrize("seed", [-1, 2**32 - 1])
def test_minus_one_is_another_seed_each_time(engine: Engine, seed: int) -> None:
    assert len({choices(engine, seed=seed)[0].request.sampling.seed for _ in range(5)}) == 5


def test_a_seed_is_taken_as_32_bits(engine: Engine) -> None:
    assert choices(engine)[0].request.sampling.seed == 1
    assert choices(engine, seed=2**32 + 5)[0].request.sampling.seed == 5
    assert choices(engine, seed=-2)[0].request.sampling.seed == 2**32 - 2


@pytest.mark.parametrize(
    ("body", "limit"), [({}, 8), ({"n_predict": 3}, 3), ({"n_predict": 0}, 1), ({"n_predict": -1}, N_CTX)]
)
def test_the_limit_is_the_requests_or_the_servers(engine: Engine, body: dict[str, object], limit: int) -> None:
    assert choices(engine, **body)[0].request.max_new_tokens == limit


def test_a_slot_is_taken_modulo_their_number(engine: Engine) -> None:
    assert choices(engine)[0].request.slot_id_wanted is None
    assert choices(engine, id_slot=-1)[0].request.slot_id_wanted is None
    assert choices(engine, id_slot=NUM_SLOTS + 1)[0].request.slot_id_wanted == 1


def test_temperature_and_top_k_are_clamped(engine: Engine) -> None:
    sampling = choices(engine, temperature=-1, top_k=-1)[0].request.sampling
    assert (sampling.temperature, sampling.top_k) == (0.0, 0)


@pytest.mark.parametrize(
    ("value", "bias"),
    [
        ([], ()),
        ([[5, 1.5]], ((5, 1.5),)),
        ([[5, False]], ((5, -math.inf),)),
        ([["ab", -2]], ((97, -2.0), (98, -2.0))),
        ({"5": 1, "b": 2}, ((5, 1.0), (98, 2.0))),
        ([[5, 1], [5, 2]], ((5, 2.0),)),
    ],
)
def test_logit_bias_has_two_forms(engine: Engine, value: object, bias: object) -> None:
    assert choices(engine, logit_bias=value)[0].request.sampling.logit_bias == bias


@pytest.mark.parametrize(
    ("value", "field"),
    [
        (5, "logit_bias"),
        ("x", "logit_bias"),
        ([5], "logit_bias[0]"),
        ([[5]], "logit_bias[0]"),
        ([[1, 1], [259, 1]], "logit_bias[1]"),
        ([[-1, 1]], "logit_bias[0]"),
        ([[True, 1]], "logit_bias[0]"),
        ([[1.5, 1]], "logit_bias[0]"),
        ([[5, True]], "logit_bias[0]"),
        ([[5, "1"]], "logit_bias[0]"),
        ([[5, None]], "logit_bias[0]"),
        ([[5, math.nan]], "logit_bias[0]"),
        ([[5, math.inf]], "logit_bias[0]"),
        ([[5, 10**400]], "logit_bias[0]"),
        ({"999": 1}, "logit_bias[0]"),
        ([[5, 1e7]], "logit_bias[0]"),
        ([[token_id, False] for token_id in range(259)], "logit_bias"),
    ],
)
def test_a_bad_logit_bias_is_named(engine: Engine, value: object, field: str) -> None:
    with pytest.raises(FieldInvalid) as error:
        choices(engine, logit_bias=value)
    assert error.value.field == field


def test_ignore_eos_forbids_the_end(engine: Engine) -> None:
    request = choices(engine, ignore_eos=True, logit_bias=[[EOS, 5]])[0].request
    assert request.eog_ids == frozenset()
    assert request.sampling.logit_bias == ((EOS, -math.inf),)
    assert choices(engine)[0].request.eog_ids == {EOS}


@pytest.mark.parametrize(
    ("body", "part"),
    [
        ({"n": NUM_SLOTS + 1}, f"Field 'n_cmpl': Value must be between 1 <= value <= {NUM_SLOTS}"),
        ({"n": 3, "best_of": 2}, "Field 'best_of': must be at least n, which is 3, but got 2"),
        ({"best_of": NUM_SLOTS + 1}, f"Field 'best_of': Value must be between 1 <= value <= {NUM_SLOTS}"),
        ({"best_of": 2, "stream": True}, "Field 'best_of': cannot be streamed where it is more than n, but got 2"),
    ],
)
def test_choices_are_bounded(engine: Engine, body: dict[str, object], part: str) -> None:
    with pytest.raises(RequestError) as error:
        choices(engine, **body)
    assert part in str(error.value)


def test_best_of_may_be_one_or_n_or_more(engine: Engine) -> None:
    assert len(choices(engine, n=2, best_of=2)) == len(choices(engine, n=2, best_of=1)) == 4
    more = choices(engine, n=2, best_of=3)
    assert [(choice.prompt_index, choice.index) for choice in more] == [(0, 0), (0, 1), (0, 2), (1, 3), (1, 4), (1, 5)]
    assert {choice.request.sampling.num_logprobs for choice in more} == {0}


def test_all_choices_of_a_body_hold_one_list_until_all_have_ended(engine: Engine) -> None:
    async def make() -> None:
        fields = parse(CompletionBody, {"n": 2})
        served = await engine.adapters.acquire(None, None)
        made = await make_choices(engine, fields, served, [(1, 2), (3,)])
        assert {choice.served for choice in made} == {served}
        assert set(engine.adapters.requests_under(served.lease)) == {choice.request.request_id for choice in made}
        for choice in made:
            assert not served.lease.is_released
            engine.adapters.observe(choice.request.finished(FinishReason.ABORT, "", 0.0))
        assert served.lease.is_released

    asyncio.run(make())


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ((7,) * N_CTX, f"request ({N_CTX} tokens)"),
        ((-1,) * N_CTX, f"request ({N_CTX} tokens)"),
        (("x" * (len("<|turn|>") * N_CTX),), f"request (at least {N_CTX} tokens)"),
        ((7, "x" * (len("<|turn|>") * (N_CTX - 1))), f"request (at least {N_CTX} tokens)"),
    ],
)
def test_a_prompt_of_absurd_length_is_refused_before_it_is_encoded(prompt: Prompt, message: str) -> None:
    with pytest.raises(PromptTooLong) as error:
        asyncio.run(encode_prompts(byte_tokenizer(), [(1,), prompt], "prompt", N_CTX))
    assert str(error.value) == f"{message} exceeds the available context size ({N_CTX} tokens), try increasing it"


def test_prompts_that_are_long_together_are_encoded_in_their_order() -> None:
    prompts: list[Prompt] = [("ab" * 100,) for _ in range(50)] + [(1, "c")]
    encoded = asyncio.run(encode_prompts(byte_tokenizer(), prompts, "prompt", N_CTX))
    assert encoded == [(BOS, *(97, 98) * 100)] * 50 + [(1, 99)]
