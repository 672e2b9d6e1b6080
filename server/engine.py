"""What the routes need once the model is ready, as one value. Built by lifecycle.py, and by tests around fakes."""

from dataclasses import dataclass, field

from model.constraints.constraint import ConstraintCompiler
from model.tokens.chat_template import ChatTemplate
from model.tokens.tokenizer import Tokenizer
from scheduler.batch import Pooling, SamplingParams
from scheduler.loop import StepLoop
from server.adapters.registry import AdapterRegistry
from server.adapters.resident import ListPreparer
from server.departures import Departures
from server.engine_users import EngineUsers
from server.metrics.metrics import Metrics
from server.response_cache import ResponseCache
from server.schemas import UnknownFields
from server.settings import Settings
from server.slots.store import SlotStore


@dataclass(frozen=True, slots=True)
class ModelCard:
    """What the server says about its model."""

    names: tuple[str, ...]
    """The first one is what answers carry."""
    path: str
    family: str
    format: str
    file_type: str
    n_ctx: int
    """Tokens of one request, prompt and answer together."""
    n_ctx_train: int
    n_vocab: int
    n_embd: int
    n_params: int
    num_bytes: int
    pooling: Pooling | None = None
    """How its files say that embeddings are pooled; None where they do not."""

    @property
    def name(self) -> str:
        """The name in answers."""
        return self.names[0]


@dataclass(slots=True)
class Engine:
    """A ready model and everything around it."""

    settings: Settings
    model: ModelCard
    tokenizer: Tokenizer
    """The base model's. Requests are read with that of their list."""
    chat_template: ChatTemplate | None
    adapters: AdapterRegistry
    lists: ListPreparer
    loop: StepLoop
    metrics: Metrics
    departures: Departures
    responses: ResponseCache
    constraints: ConstraintCompiler = field(default_factory=ConstraintCompiler)
    slot_store: SlotStore | None = None
    """None where no folder for slots is set."""
    unknown_fields: UnknownFields = field(default_factory=UnknownFields)
    users: EngineUsers = field(default_factory=EngineUsers)
    is_dormant: bool = False
    """Whether it only tells what it told before the server went to sleep: see dormancy.py."""

    @property
    def default_sampling(self) -> SamplingParams:
        """How tokens are chosen for a request that says nothing about it."""
        settings = self.settings
        return SamplingParams(
            temperature=settings.temp,
            top_k=settings.top_k,
            top_p=settings.top_p,
            min_p=settings.min_p,
            repeat_last_n=settings.repeat_last_n,
            repeat_penalty=settings.repeat_penalty,
            presence_penalty=settings.presence_penalty,
            frequency_penalty=settings.frequency_penalty,
            seed=settings.seed % 2**32,
            chain=settings.chain,
        )
