"""The bodies of answers: which fields there are, and their types. Those that make them are checked against these types,
and the OpenAPI document is made of them.

Source: llama-server's documented answers, OpenAI's API reference, vLLM's paths for adapters.
"""

from typing import Literal, NotRequired

from typing_extensions import TypedDict


class ErrorDetails(TypedDict):
    """What went wrong."""

    code: int | str
    message: str
    type: str
    param: NotRequired[str]
    n_prompt_tokens: NotRequired[int]
    n_ctx: NotRequired[int]


class ErrorBody(TypedDict):
    """The one form of every error."""

    error: ErrorDetails


class Health(TypedDict):
    """New requests are taken."""

    status: Literal["ok"]


class AdapterScale(TypedDict):
    """An element of an effective adapter list."""

    id: int
    name: str
    scale: float


class LoadedAdapter(TypedDict):
    """An adapter that requests can ask for, and its current scale."""

    id: int
    path: str
    scale: float
    task_name: str
    prompt_prefix: str
    alora_invocation_string: NotRequired[str]
    alora_invocation_tokens: NotRequired[list[int]]


class Success(TypedDict):
    """It has happened."""

    success: Literal[True]


class ModelLoaded(Success):
    """Another model is served."""

    model: str


class ShownMix(TypedDict):
    """A name for a list of adapters."""

    name: str
    adapters: dict[str, float]


class ShownMixes(TypedDict):
    """All mixes."""

    object: Literal["list"]
    data: list[ShownMix]


class MixDeleted(TypedDict):
    """A mix is forgotten."""

    name: str
    deleted: Literal[True]


class MixPart(TypedDict):
    """An adapter of a mix."""

    name: str
    scale: float


class ModelMeta(TypedDict):
    """The base model in numbers."""

    n_vocab: int
    n_ctx: int
    n_ctx_train: int
    n_embd: int
    n_params: int
    size: int
    ftype: str


class ModelCommon(TypedDict):
    """What everything that is served has in common."""

    object: Literal["model"]
    created: int
    owned_by: str
    max_model_len: int


class ServedModel(ModelCommon):
    """What `model` can name: an adapter."""

    id: str
    root: str
    parent: str | None


class ServedMix(ServedModel):
    """What `model` can name: a mix."""

    lora: list[MixPart]


class ServedBase(ServedModel):
    """What `model` can name: the base model."""

    aliases: list[str]
    tags: list[str]
    meta: ModelMeta


class ModelDetails(TypedDict):
    """The base model, for Ollama's clients."""

    parent_model: str
    format: str
    family: str
    families: list[str]
    parameter_size: str
    quantization_level: str


class NamedModel(TypedDict):
    """The base model as llama-server's clients read it."""

    name: str
    model: str
    modified_at: str
    size: str
    digest: str
    type: str
    description: str
    tags: list[str]
    capabilities: list[str]
    parameters: str
    details: ModelDetails


class ServedModels(TypedDict):
    """The base model, the adapters and the mixes."""

    models: list[NamedModel]
    object: Literal["list"]
    data: list[ServedBase | ServedMix | ServedModel]


class DefaultSettings(TypedDict):
    """What a request gets that says nothing."""

    params: dict[str, object]
    n_ctx: int


class Modalities(TypedDict):
    """What prompts can hold beside text."""

    vision: bool
    video: bool
    audio: bool


class Props(TypedDict):
    """How the server is set up."""

    default_generation_settings: DefaultSettings
    total_slots: int
    model_alias: str
    model_ftype: str
    model_path: str
    modalities: Modalities
    endpoint_slots: bool
    endpoint_props: bool
    endpoint_metrics: bool
    chat_template: str
    bos_token: str
    eos_token: str
    build_info: str
    is_sleeping: bool


class NextToken(TypedDict):
    """How far a request is."""

    has_next_token: bool
    n_remain: int
    n_decoded: int


class Slot(TypedDict):
    """A slot and, where it is in use, its request."""

    id: int
    n_ctx: int
    speculative: bool
    is_processing: bool
    id_task: NotRequired[int]
    n_prompt_tokens: NotRequired[int]
    n_prompt_tokens_processed: NotRequired[int]
    n_prompt_tokens_cache: NotRequired[int]
    params: NotRequired[dict[str, object]]
    next_token: NotRequired[list[NextToken]]


class SaveTimings(TypedDict):
    """How long it took."""

    save_ms: float


class SlotSaved(TypedDict):
    """The KV of a slot's latest request is in a file."""

    id_slot: int
    filename: str
    n_saved: int
    n_written: int
    timings: SaveTimings


class RestoreTimings(TypedDict):
    """How long it took."""

    restore_ms: float


class SlotRestored(TypedDict):
    """The KV of a file can be found by requests."""

    id_slot: int
    filename: str
    n_restored: int
    n_read: int
    timings: RestoreTimings


class SlotErased(TypedDict):
    """The KV of a slot's latest request cannot be found any more."""

    id_slot: int
    n_erased: int


class Embedding(TypedDict):
    """The vector of an input: numbers, or the base64 of their little-endian float32."""

    embedding: list[float] | str
    index: int
    object: Literal["embedding"]
    encoding_format: NotRequired[Literal["base64"]]


class EmbeddingUsage(TypedDict):
    """The tokens of all inputs."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingEnvelope(TypedDict):
    """An answer with embeddings, but for them."""

    model: str
    object: Literal["list"]
    usage: EmbeddingUsage


class Embeddings(EmbeddingEnvelope):
    """Embeddings in OpenAI's form."""

    data: list[Embedding]


class EmbeddingRows(TypedDict):
    """The vectors of an input in llama-server's form: one, or one for each token where they are not pooled."""

    index: int
    embedding: list[list[float]]


class TokenPiece(TypedDict):
    """A token and its text; its bytes where they are not text by themselves."""

    id: int
    piece: str | list[int]


class Tokens(TypedDict):
    """A text as tokens."""

    tokens: list[int] | list[TokenPiece]


class Detokenized(TypedDict):
    """Tokens as text, under llama-server's name and under that of vLLM."""

    content: str
    prompt: str


class PromptTokens(TypedDict):
    """How many tokens a prompt has."""

    input_tokens: int
    object: Literal["response.input_tokens"]


class RenderedPrompt(TypedDict):
    """The prompt that messages make."""

    prompt: str
