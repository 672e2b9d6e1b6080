"""Every setting of the server, once: its type, default, bounds, flags and help. Command line over environment over
default.

The flags are llama-server's where it has the same thing. The environment variable of a setting is COHORT_ and the
field's name: COHORT_CTX_SIZE, COHORT_LORA, …. What a setting leads to is decided elsewhere.
"""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, field_validator
from pydantic_settings import NoDecode, SettingsConfigDict

from scheduler.fairness import DEFAULT_FAIRNESS
from scheduler.policy import PolicyName
from server.adapters.arguments import AdapterArgument, MixArgument, paths_at_scale_1, paths_with_scales, read_mixes
from server.adapters.weights import AdapterWeight, read_weights
from server.chat_settings import ChatSettings
from server.sampling.settings import SamplerSettings
from server.setting_flags import NonNegative, Positive, flag

ENV_PREFIX = "COHORT_"


class Settings(SamplerSettings, ChatSettings):
    """The settings of one server."""

    model_config = SettingsConfigDict(env_prefix=ENV_PREFIX, extra="forbid", frozen=True, allow_inf_nan=False)

    model: Annotated[
        Path, flag("-m", "--model", help="the model: a Hugging Face directory or a GGUF file", metavar="PATH")
    ]
    alias: Annotated[
        str, flag("-a", "--alias", help="the model's name in the API; several: separated by commas", metavar="NAME")
    ] = ""
    tags: Annotated[
        str, flag("--tags", help="words about the model for /v1/models, separated by commas", metavar="TAG,…")
    ] = ""
    ctx_size: Annotated[
        NonNegative,
        flag("-c", "--ctx-size", help="tokens of context over all slots; 0: each slot has the model's", metavar="N"),
    ] = 0
    kv_unified: Annotated[
        bool, flag("-kvu", "--kv-unified", help="let each slot have the whole context, out of one pool for all slots")
    ] = False
    parallel: Annotated[Positive, flag("-np", "--parallel", help="requests that run at once (slots)", metavar="N")] = 16
    context_shift: Annotated[
        bool,
        flag("--context-shift", help="let answers go on in a full context, without a part of what came before"),
    ] = False
    keep: Annotated[
        int,
        Field(ge=-1),
        flag("--keep", help="tokens of the prompt that such an answer keeps; -1: all", metavar="N"),
    ] = 0
    batch_size: Annotated[
        Positive, flag("-b", "--batch-size", help="most tokens computed in one step", metavar="N")
    ] = 256
    ubatch_size: Annotated[
        NonNegative, flag("-ub", "--ubatch-size", help="the same; the smaller one counts; 0: no bound", metavar="N")
    ] = 0
    threads: Annotated[
        NonNegative, flag("-t", "--threads", help="CPU threads; 0: one for each usable physical core", metavar="N")
    ] = 0
    host: Annotated[str, flag("--host", help="addresses to listen on, separated by commas", metavar="HOST")] = (
        "127.0.0.1"
    )
    port: Annotated[
        int, Field(ge=0, le=65535), flag("--port", help="port to listen on; 0: any free one", metavar="PORT")
    ] = 8080
    api_key: Annotated[
        str, flag("--api-key", help="keys that requests must carry one of, separated by commas", metavar="KEY")
    ] = ""
    api_key_file: Annotated[
        Path | None, flag("--api-key-file", help="a file with such keys, one a line", metavar="PATH")
    ] = None
    cors_origins: Annotated[
        str,
        flag(
            "--cors-origins",
            help="origins of web pages that may use the API, separated by commas; localhost: this machine's; *: any",
            metavar="ORIGIN,…",
        ),
    ] = "*"
    metrics: Annotated[bool, flag("--metrics", help="serve GET /metrics")] = True
    slots: Annotated[bool, flag("--slots", help="serve GET /slots")] = True
    spm_infill: Annotated[
        bool, flag("--spm-infill", help="prompts of /infill have the text after the gap before the text before it")
    ] = False
    props: Annotated[bool, flag("--props", help="accept POST /props, which changes nothing")] = False

    embeddings: Annotated[bool, flag("--embeddings", "--embedding", help="serve POST /v1/embeddings")] = True
    pooling: Annotated[
        Literal["none", "mean", "cls", "last"] | None,
        flag(
            "--pooling",
            help="how an embedding is made of a prompt's hidden states: none, mean, cls, last; by default what the "
            "model's files say, else last on OpenAI's route and none on llama-server's",
            metavar="TYPE",
        ),
    ] = None
    embd_normalize: Annotated[
        int,
        Field(ge=-1),
        flag(
            "--embd-normalize",
            help="how embeddings are normalised; -1: not, 0: the largest absolute value is 32760, 1: the sum of "
            "absolute values is 1, 2: the length is 1, more: that p-norm is",
            metavar="N",
        ),
    ] = 2

    slot_save_path: Annotated[
        Path | None,
        flag(
            "--slot-save-path",
            help="a folder for the KV of slots; enables POST /slots/N?action=save, restore and erase",
            metavar="DIR",
        ),
    ] = None

    lora: Annotated[
        tuple[AdapterArgument, ...],
        NoDecode,
        flag("--lora", help="adapters to load at scale 1, separated by commas; repeatable", metavar="[NAME=]PATH"),
    ] = ()
    lora_scaled: Annotated[
        tuple[AdapterArgument, ...],
        NoDecode,
        flag("--lora-scaled", help="adapters to load at a scale of their own; repeatable", metavar="[NAME=]PATH:SCALE"),
    ] = ()
    lora_init_without_apply: Annotated[
        bool, flag("--lora-init-without-apply", help="start with every adapter at scale 0")
    ] = False
    lora_dir: Annotated[
        Path | None,
        flag(
            "--lora-dir",
            help="a folder of adapters (PEFT directories and .gguf files), chosen by name and loaded when first used",
            metavar="DIR",
        ),
    ] = None
    mix: Annotated[
        tuple[MixArgument, ...],
        NoDecode,
        flag(
            "--mix",
            help="a name for a list of adapters, as in support=tone:0.7,facts:0.5; several: repeated, or separated by "
            "semicolons",
            metavar="NAME=ADAPTER:SCALE,…",
        ),
    ] = ()
    max_loras: Annotated[
        NonNegative,
        flag(
            "--max-loras",
            help="most adapters in memory; one that is not in use makes room, those of --lora stay; 0: no limit",
            metavar="N",
        ),
    ] = 0
    lora_memory_bytes: Annotated[
        NonNegative,
        flag("--lora-memory-bytes", help="most memory that loaded adapters take; 0: no limit", metavar="N"),
    ] = 0

    policy: Annotated[
        PolicyName,
        flag(
            "--policy",
            help="who runs next. fair: bounded waits for every adapter list; fcfs: arrival order; "
            "drain: arrival order, and one list keeps the steps while it has requests, as in llama-server",
        ),
    ] = "fair"
    max_wait: Annotated[
        float,
        Field(ge=0),
        flag("--max-wait", help="seconds after which a list without a slot is given one, of policy fair", metavar="S"),
    ] = DEFAULT_FAIRNESS.max_wait_s
    fair_slack: Annotated[
        float,
        Field(ge=0),
        flag(
            "--fair-slack",
            help="tokens by which a running list may be ahead of a waiting one, so that batches stay large, "
            "of policy fair",
            metavar="TOKENS",
        ),
    ] = DEFAULT_FAIRNESS.slack_tokens
    max_active_lists: Annotated[
        NonNegative,
        flag(
            "--max-active-lists",
            help="number of running lists from which on a late one replaces another, of policy fair; "
            "0: a quarter of the slots, at least 2",
            metavar="N",
        ),
    ] = DEFAULT_FAIRNESS.max_active_lists
    adapter_weight: Annotated[
        tuple[AdapterWeight, ...],
        NoDecode,
        flag(
            "--adapter-weight",
            help="shares of policy fair: an adapter of weight 2 is due twice the tokens of one of weight 1, the "
            "default; base is the base model; a list has the largest weight of its adapters; repeatable",
            metavar="NAME=W",
        ),
    ] = ()

    n_predict: Annotated[
        int,
        Field(ge=-1),
        flag("-n", "--n-predict", "--predict", help="most tokens of an answer; -1: no limit", metavar="N"),
    ] = -1

    device: Annotated[
        Literal["auto", "cpu", "cuda"], flag("--device", help="auto: cuda where there is a usable card")
    ] = "auto"
    gpu_layers: Annotated[
        int | Literal["auto", "all"],
        flag(
            "-ngl",
            "--gpu-layers",
            "--n-gpu-layers",
            help="0: as --device cpu; anything else is all layers where --device finds a card",
            metavar="N",
        ),
    ] = "auto"
    dtype: Annotated[
        Literal["auto", "float32", "bfloat16", "float16", "int8"],
        flag(
            "--dtype",
            help="auto: the fastest that is right on this machine for this model; int8: products of integers on a CPU, "
            "the codes of a block-quantised GGUF file as they are, other weights quantised to 8 bits",
        ),
    ] = "auto"
    kv_cache_bytes: Annotated[
        NonNegative,
        flag(
            "--kv-cache-bytes",
            help="memory for the KV cache; 0: what the context needs, at most a quarter of what is free",
            metavar="N",
        ),
    ] = 0
    lora_cache_bytes: Annotated[
        NonNegative, flag("--lora-cache-bytes", help="memory for adapter lists that are ready to run", metavar="N")
    ] = 512 * 2**20
    response_cache: Annotated[
        NonNegative,
        flag(
            "--response-cache",
            help="answers kept for deterministic requests (temperature 0, or a seed) that come again; 0: none",
            metavar="N",
        ),
    ] = 0
    response_cache_bytes: Annotated[
        NonNegative, flag("--response-cache-bytes", help="most memory that these answers take", metavar="N")
    ] = 64 * 2**20
    lora_load_dir: Annotated[
        tuple[str, ...],
        NoDecode,
        flag(
            "--lora-load-dir",
            help="folders, separated by commas, from which POST /v1/load_lora_adapter may load adapters; without any "
            "that path does not exist; repeatable",
            metavar="DIR",
        ),
    ] = ()
    model_dir: Annotated[
        tuple[str, ...],
        NoDecode,
        flag(
            "--model-dir",
            help="folders, separated by commas, from which POST /admin/models/load may load a model; without any that "
            "path does not exist; repeatable",
            metavar="DIR",
        ),
    ] = ()
    max_waiting: Annotated[
        NonNegative, flag("--max-waiting", help="requests that may wait for a slot; more get 503", metavar="N")
    ] = 512
    max_body_bytes: Annotated[
        Positive, flag("--max-body-bytes", help="longest body of a request; a longer one gets 413", metavar="N")
    ] = 8 * 2**20
    request_timeout: Annotated[
        float,
        Field(ge=0),
        flag(
            "--request-timeout",
            help="seconds from arrival after which an answer ends with what it has, or with 503 where that is nothing; "
            "0: no limit",
            metavar="S",
        ),
    ] = 0.0
    sse_ping_interval: Annotated[
        int,
        Field(ge=-1),
        flag(
            "--sse-ping-interval",
            help="seconds of silence after which a stream sends a comment; 0 and less: never",
            metavar="S",
        ),
    ] = 30
    sleep_idle_seconds: Annotated[
        int,
        Field(ge=-1),
        flag(
            "--sleep-idle-seconds",
            help="seconds without a request after which the model leaves memory, to be loaded again for the next one; "
            "-1: never",
            metavar="S",
        ),
    ] = -1
    shutdown_grace: Annotated[
        float, Field(ge=0), flag("--shutdown-grace", help="seconds that running requests get at shutdown", metavar="S")
    ] = 30.0
    verbose: Annotated[
        bool, flag("-v", "--verbose", help="log everything, and let OpenAI's answers hold the native one as __verbose")
    ] = False
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"], flag("--log-level", help="least severity that is logged")
    ] = "info"

    @property
    def adapters(self) -> tuple[AdapterArgument, ...]:
        """The adapters to load, in order."""
        return self.lora + self.lora_scaled

    @field_validator("lora", mode="before")
    @classmethod
    def _split_paths(cls, value: object) -> object:
        return paths_at_scale_1(value) if isinstance(value, str) else value

    @field_validator("lora_scaled", mode="before")
    @classmethod
    def _split_scaled(cls, value: object) -> object:
        return paths_with_scales(value) if isinstance(value, str) else value

    @field_validator("mix", mode="before")
    @classmethod
    def _split_mixes(cls, value: object) -> object:
        if isinstance(value, list) and all(isinstance(item, str) for item in value):  # of a repeated flag
            value = ";".join(value)
        return read_mixes(value) if isinstance(value, str) else value

    @field_validator("lora_load_dir", "model_dir", mode="before")
    @classmethod
    def _split_folders(cls, value: object) -> object:
        texts = [value] if isinstance(value, str) else value
        if isinstance(texts, list) and all(isinstance(text, str) for text in texts):
            return tuple(folder.strip() for text in texts for folder in text.split(",") if folder.strip())
        return value

    @field_validator("adapter_weight", mode="before")
    @classmethod
    def _split_weights(cls, value: object) -> object:
        if isinstance(value, list) and all(isinstance(item, str) for item in value):  # of a repeated flag
            value = ",".join(value)
        return read_weights(value) if isinstance(value, str) else value
