"""What the routes need once the model is ready, as one value. Built by lifecycle.py, and by tests around fakes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from model.chat_template import ChatTemplate
from model.tokenizer import Tokenizer
from scheduler.batch import SamplingParams
from scheduler.loop import StepLoop
from server.adapter_registry import AdapterRegistry
from server.departures import Departures
from server.errors import FeatureOff
from server.metrics import Metrics
from server.schemas import UnknownFields
from server.settings import Settings


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
    chat_template: ChatTemplate | None
    adapters: AdapterRegistry
    loop: StepLoop
    metrics: Metrics
    departures: Departures
    unknown_fields: UnknownFields = field(default_factory=UnknownFields)

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
        )

    def render_chat(
        self,
        messages: Sequence[Mapping[str, object]],
        *,
        add_generation_prompt: bool,
        variables: Mapping[str, object],
    ) -> str:
        """Return the prompt of a conversation. Raises FeatureOff where the model has no chat template, TemplateError
        where it refuses.
        """
        if self.chat_template is None:
            raise FeatureOff("this model has no chat template; start the server with --chat-template")
        return self.chat_template.render(messages, add_generation_prompt=add_generation_prompt, variables=variables)
