"""A small stand-in for the model: a tokenizer of single bytes, and an executor whose tokens are easy to foresee.

The tokenizer is the real class over a vocabulary of 256 bytes and three special tokens, so one byte of text is one
token.
"""

import threading
from collections.abc import Callable

import numpy as np
import tokenizers
from tokenizers import AddedToken, models, pre_tokenizers

from model.pooling import add_states, wanted_tokens
from model.tokens.infill import NO_FIM, FimTokens
from model.tokens.tokenizer import Tokenizer
from model.tokens.vocabulary import Vocabulary, byte_level_piece
from scheduler.batch import BLOCK_SIZE, Batch, Pooled, Row, RowFault, Sample, Scores, StepOutput, TokenLogprob
from scheduler.cohort import AdapterId, CohortKey, cohort_key
from scheduler.core import SchedulerLimits
from scheduler.loop import Executor
from server.adapters.arguments import AdapterArgument
from server.adapters.catalog import AdapterEntry
from server.adapters.registry import ServedList
from server.adapters.resident import ResidentAdapter
from server.assembly import assemble, first_adapters
from server.catalog_opening import model_names, open_catalog
from server.engine import Engine, ModelCard
from server.settings import Settings

TIMEOUT_S = 120
"""After which a wait has failed. A server whose kernels are compiled takes a minute to start on a busy machine."""

BOS, EOS, TURN = 256, 257, 258
VOCAB_SIZE = 259
N_CTX = 256
NUM_SLOTS = 4

CHAT_TEMPLATE = (
    "{% for message in messages %}<{{ message.role }}>{{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}{% if shout is defined %}!{% endif %}"
)

BODIES: dict[str, dict[str, object]] = {
    "/completion": {"prompt": "abc"},
    "/completions": {"prompt": "abc"},
    "/v1/completions": {"prompt": "abc"},
    "/chat/completions": {"messages": [{"role": "user", "content": "abc"}]},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "abc"}]},
}
"""Every generating route, and the least that it wants to be told."""


def byte_tokenizer(chat_template: str | None = CHAT_TEMPLATE, fim: FimTokens = NO_FIM) -> Tokenizer:
    """Return a tokenizer whose token 0 … 255 is that byte, and which puts BOS in front."""
    characters = sorted(pre_tokenizers.ByteLevel.alphabet(), key=byte_level_piece)
    encoder = tokenizers.Tokenizer(models.BPE(vocab={text: i for i, text in enumerate(characters)}, merges=[]))
    encoder.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    special = ["<s>", "</s>", "<|turn|>"]
    encoder.add_special_tokens([AddedToken(text, special=True) for text in special])
    vocabulary = Vocabulary(
        encoder=encoder,
        pieces=(*(bytes([i]) for i in range(256)), *(text.encode() for text in special)),
        control_ids=frozenset({BOS, EOS, TURN}),
        bos_id=BOS,
        eos_id=EOS,
        adds_bos=True,
        adds_eos=False,
        eog_ids=frozenset({EOS}),
        special_tokens={"bos_token": "<s>", "eos_token": "</s>"},
        chat_template=chat_template,
        tool_use_template=None,
        fim=fim,
    )
    return Tokenizer(vocabulary, VOCAB_SIZE)


def letter(key: CohortKey, index: int) -> int:
    """The answer of a model that says the alphabet, beginning further on for each adapter list."""
    first = round(sum(10 * scale * (adapter.load_id + 1) for adapter, scale in key))
    return ord("a") + (first + index) % 26


def alphabet(key: CohortKey, length: int) -> str:
    """What `letter` says in `length` tokens."""
    return "".join(chr(letter(key, index)) for index in range(length))


def says(text: str | bytes) -> Callable[[CohortKey, int], int]:
    """The answer of a model that says `text` and ends."""
    content = text.encode() if isinstance(text, str) else text
    return lambda key, index: content[index] if index < len(content) else EOS


class Turnstile:
    """Lets the executor compute one step for each permit, and tells when it waits for the next."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._permits = 0
        self._is_open = False
        self._num_arrived = 0
        self._num_inside = 0

    def go_through(self) -> None:
        """Called by the executor before a step."""
        with self._condition:
            self._num_arrived += 1
            self._condition.notify_all()
            self._num_inside += 1
            assert self._condition.wait_for(lambda: self._is_open or self._permits > 0, timeout=TIMEOUT_S)
            self._num_inside -= 1
            self._permits -= 1

    def let(self, num_steps: int) -> None:
        """Allow so many more steps."""
        with self._condition:
            self._permits += num_steps
            self._condition.notify_all()

    @property
    def is_waiting(self) -> bool:
        """Whether a planned step stands still."""
        with self._condition:
            return self._num_inside > 0 and self._permits <= 0 and not self._is_open

    def open(self) -> None:
        """Allow every step from now on."""
        with self._condition:
            self._is_open = True
            self._condition.notify_all()

    def wait_for_step(self, number: int) -> None:
        """Wait until the executor has come to its step `number`, counted from 1."""
        with self._condition:
            assert self._condition.wait_for(lambda: self._num_arrived >= number, timeout=TIMEOUT_S), self._num_arrived


class FakeExecutor:
    """Computes nothing: the token at each place of an answer comes from `answer`, given the key and the place."""

    def __init__(self, answer: Callable[[CohortKey, int], int] = letter, turnstile: Turnstile | None = None) -> None:
        self.answer = answer
        self.turnstile = turnstile
        self.batches: list[Batch] = []
        self.error: Exception | None = None
        """Raised by the next step."""
        self._first_end: dict[int, int] = {}

    def execute(self, batch: Batch) -> StepOutput:
        """Return the foreseen tokens."""
        if self.turnstile is not None:
            self.turnstile.go_through()
        self.batches.append(batch)
        if self.error is not None:
            error, self.error = self.error, None
            raise error
        samples = tuple(self.sample(batch.key, row) for row in batch.rows if row.sampling is not None)
        pooled = tuple(self.pool(batch.key, row) for row in batch.rows if row.pooling is not None)
        return StepOutput(samples, pooled, tuple(self.score(row) for row in batch.rows if row.scoring is not None))

    def score(self, row: Row) -> Scores:
        """Score each token by its place in the prompt; BOS is the most likely one everywhere."""
        assert row.scoring is not None
        tokens = []
        for position, token_id in enumerate(row.scoring.token_ids, row.start + 1):
            top = (TokenLogprob(BOS, -0.5), TokenLogprob(token_id, -1.0 * position))
            tokens.append(Sample(row.request_id, token_id, -1.0 * position, top[: row.scoring.num_logprobs]))
        return Scores(row.request_id, row.start, tuple(tokens))

    def pool(self, key: CohortKey, row: Row) -> Pooled:
        """Pool states (token id, position, what the key says first, 1), of four numbers each."""
        assert row.pooling is not None
        states = [[token, position, letter(key, 0), 1] for position, token in enumerate(row.token_ids, row.start)]
        wanted = [states[index] for index in wanted_tokens(row)]
        content = add_states(row.pooling, row.pooled, np.array(wanted, np.float32).reshape(-1, 4))
        return Pooled(row.request_id, content)

    def sample(self, key: CohortKey, row: Row) -> Sample | RowFault:
        """Return the foreseen outcome of one row."""
        assert row.sampling is not None
        index = row.end - self._first_end.setdefault(row.request_id, row.end)
        token_id = self.answer(key, index)
        if row.sampling.num_logprobs is None:
            return Sample(row.request_id, token_id)
        top = [TokenLogprob(token_id, -0.25), TokenLogprob(BOS, -1.5), TokenLogprob(EOS, float("-inf"))]
        return Sample(row.request_id, token_id, -0.25, tuple(top[: row.sampling.num_logprobs]))


def fake_resident(entry: AdapterEntry, load_id: int) -> ResidentAdapter:
    """Return an adapter as its loading makes it: its digest tells its path."""
    return ResidentAdapter(
        id=AdapterId(load_id, f"digest of {entry.path}"),
        name=entry.name,
        path=entry.path,
        num_bytes=100,
        task_name=f"task {entry.id}",
    )


class FakeLoader:
    """Loads without files or waiting, and knows what is in memory."""

    def __init__(self, make: Callable[[AdapterEntry, int], ResidentAdapter] = fake_resident) -> None:
        self.make = make
        self.loaded: list[str] = []
        """Names, in the order of their loading."""

    def estimate_bytes(self, entry: AdapterEntry) -> int:
        """Return what every adapter takes."""
        return 100

    async def load(self, entry: AdapterEntry, load_id: int) -> ResidentAdapter:
        """Return what `make` makes, or raise what it raises."""
        self.loaded.append(entry.name)
        return self.make(entry, load_id)

    async def drop(self, resident: ResidentAdapter) -> None:
        """Nothing is held."""

    def is_prepared(self, key: CohortKey) -> bool:
        """Steps need nothing."""
        return True

    async def prepare(self, key: CohortKey) -> None:
        """Steps need nothing."""


def fake_settings(num_adapters: int = 2) -> Settings:
    """Return settings with adapters at scale 1, and nothing random."""
    return Settings.model_validate(
        {
            "model": "fake.gguf",
            "alias": "fake",
            "port": 0,
            "parallel": NUM_SLOTS,
            "n_predict": 8,
            "seed": 1,
            "lora": tuple(AdapterArgument(f"adapter{index}.gguf") for index in range(num_adapters)),
        }
    )


def fake_limits(max_waiting: int = 8) -> SchedulerLimits:
    """Return room for every slot's whole context."""
    return SchedulerLimits(
        num_slots=NUM_SLOTS,
        num_blocks=NUM_SLOTS * N_CTX // BLOCK_SIZE,
        max_context=N_CTX,
        max_step_tokens=64,
        max_waiting=max_waiting,
    )


def fake_engine(
    executor: Executor,
    settings: Settings | None = None,
    limits: SchedulerLimits | None = None,
    loader: FakeLoader | None = None,
    chat_template: str | None = CHAT_TEMPLATE,
    previous: Engine | None = None,
    fim: FimTokens = NO_FIM,
) -> Engine:
    """Return an engine around `executor`, composed as the real one is."""
    settings = settings or fake_settings()
    tokenizer = byte_tokenizer(chat_template, fim)
    card = ModelCard(
        names=model_names(settings),
        path=str(settings.model),
        family="llama",
        format="gguf",
        file_type="F32",
        n_ctx=N_CTX,
        n_ctx_train=1024,
        n_vocab=VOCAB_SIZE,
        n_embd=8,
        n_params=1234,
        num_bytes=4936,
    )
    made = loader or FakeLoader()
    catalog = open_catalog(settings) if previous is None else previous.adapters.catalog.with_base(card.names)
    residents = {entry: made.make(entry, next(catalog.load_ids)) for entry in first_adapters(catalog, previous)}
    limits = limits or fake_limits()
    template = tokenizer.chat_template
    return assemble(
        settings, card, tokenizer, template, limits, executor, catalog, lambda loop: made, residents, previous
    )


def base_list() -> ServedList:
    """Return the list of no adapters, of a server without any."""
    served = fake_engine(FakeExecutor(), fake_settings(num_adapters=0)).adapters.try_serve(())
    assert served is not None
    return served


def key_of(engine: Engine, lora: object = None, model: str | None = None) -> CohortKey:
    """Return the key of a request with these fields, whose adapters are in memory."""
    scales = []
    for entry, scale in engine.adapters.catalog.resolve(lora, model):
        resident = engine.adapters.residency.resident(entry)
        assert resident is not None, f"{entry.name} is not in memory"
        scales.append((resident.id, scale))
    return cohort_key(scales)


def current_key(engine: Engine) -> CohortKey:
    """Return the key of a request that names no list."""
    return key_of(engine)
