"""From a validated body to scheduler requests: tokens, sampling, seeds, limits. Submits nothing."""

import asyncio
import math
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from model.constraints.constraint import ConstraintText
from model.tokens.detokenizer import Detokenizer
from model.tokens.tokenizer import Tokenizer
from scheduler.batch import SamplerChain, SamplingParams
from scheduler.context_shift import ContextShift
from scheduler.errors import PromptTooLong
from scheduler.request import Request
from server.adapters.registry import ServedList
from server.aside import in_proportion
from server.constraint_fields import WantedConstraint, compile_constraint, read_constraint, read_preserved
from server.engine import Engine
from server.errors import BodyInvalid, FieldInvalid
from server.fields import json_type
from server.sampling.fields import read_chain
from server.schemas import MAX_PENALTY, GenerationBody
from server.text_rules import TextRules

Prompt: TypeAlias = tuple[int | str, ...]
"""Token ids and texts in order."""

RANDOM_SEED = 2**32 - 1
"""llama-server's -1 as an unsigned number: choose one."""
_LONG_TEXT = 8192
"""Characters, and token ids, from which prompts are encoded off the event loop: it would delay everybody's tokens."""

_PLAIN = TextRules()


@dataclass(frozen=True, slots=True)
class Choice:
    """One answer to generate: the request, and which prompt and which of its `n` choices it is."""

    index: int
    prompt_index: int
    request: Request
    served: ServedList
    """The same for all choices of a body."""
    rules: TextRules = _PLAIN
    """How its text is made of its tokens."""
    constraint: ConstraintText | None = None

    def detokenizer(self) -> Detokenizer:
        """Return a new reader of its tokens, which shows of them what the answer shows."""
        rules = self.rules
        return Detokenizer(self.served.tokenizer, render_special=rules.shows_special, shown_ids=rules.shown_ids)


def read_prompts(value: object) -> list[Prompt]:
    """Return the prompts in the field `prompt`: a text, token ids, a mixed list, `{"prompt_string"}`, or a list of
    these. Raises FieldInvalid.
    """
    if value is None:
        raise FieldInvalid("prompt", "is required")
    if not isinstance(value, list):
        return [read_prompt(value, "prompt")]
    if not value:
        raise BodyInvalid('"prompt" must not be empty')
    if any(is_id(item) for item in value):
        return [read_prompt(value, "prompt")]
    return [read_prompt(item, f"prompt[{index}]") for index, item in enumerate(value)]


def read_prompt(value: object, field: str) -> Prompt:
    """Return the one prompt that `value` is. Raises FieldInvalid."""
    if isinstance(value, str):
        return (value,)
    if isinstance(value, dict):
        if value.get("multimodal_data"):
            raise FieldInvalid(f"{field}.multimodal_data", "is not supported; this server takes text only")
        return read_prompt(value.get("prompt_string"), f"{field}.prompt_string")
    if isinstance(value, list):
        if not {int, str}.issuperset(map(type, value)):
            index, item = next((i, item) for i, item in enumerate(value) if type(item) not in (int, str))
            raise FieldInvalid(f"{field}[{index}]", f"must be a token id or a string, but is {json_type(item)}")
        return tuple(value)
    raise FieldInvalid(
        field,
        "must be a string, an array of token ids and strings, or an object with 'prompt_string', "
        f"but is {json_type(value)}",
    )


def prompt_text(tokenizer: Tokenizer, prompt: Prompt) -> str:
    """Return the text of a prompt, as it was sent. Its token ids are in the vocabulary."""
    parts = (part.encode() if isinstance(part, str) else tokenizer.piece(part) for part in prompt)
    return b"".join(parts).decode("utf-8", "replace")


def is_id(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


async def encode_prompt(
    tokenizer: Tokenizer, prompt: Prompt, field: str, *, add_special: bool = True, parse_special: bool = True
) -> tuple[int, ...]:
    """Return the tokens of `prompt`. With `add_special` a text at its beginning gets the model's BOS and one at its end
    the model's EOS, where the model adds them; with `parse_special` the text of a special token is that token. Raises
    FieldInvalid.
    """

    def encode() -> tuple[int, ...]:
        return _encode(tokenizer, prompt, field, add_special=add_special, parse_special=parse_special)

    return encode() if _size((prompt,)) < _LONG_TEXT else await asyncio.to_thread(encode)


async def encode_prompts(
    tokenizer: Tokenizer, prompts: Sequence[Prompt], field: str, max_context: int
) -> list[tuple[int, ...]]:
    """Return the tokens of prompts that are to be computed. Raises FieldInvalid, and PromptTooLong, before anything is
    encoded, where one cannot fit into `max_context` tokens.
    """
    for prompt in prompts:
        _refuse_absurd_length(tokenizer, prompt, max_context)

    def encode() -> list[tuple[int, ...]]:
        return [_encode(tokenizer, prompt, field, add_special=True, parse_special=True) for prompt in prompts]

    return encode() if _size(prompts) < _LONG_TEXT else await asyncio.to_thread(encode)


def _size(prompts: Sequence[Prompt]) -> int:
    return sum(len(part) if isinstance(part, str) else 1 for prompt in prompts for part in prompt)


def _refuse_absurd_length(tokenizer: Tokenizer, prompt: Prompt, max_context: int) -> None:
    is_counted = str not in set(map(type, prompt))
    num_tokens = len(prompt)
    if not is_counted:
        num_tokens = sum(tokenizer.fewest_tokens(part) if isinstance(part, str) else 1 for part in prompt)
    if num_tokens >= max_context:
        raise PromptTooLong(num_tokens, max_context, is_counted=is_counted)


def _encode(
    tokenizer: Tokenizer, prompt: Prompt, field: str, *, add_special: bool, parse_special: bool
) -> tuple[int, ...]:
    ids: list[int] = []
    for index, part in enumerate(prompt):
        if isinstance(part, str):
            ids += tokenizer.encode(part, parse_special=parse_special)
        else:
            ids.append(checked_token_id(tokenizer, part, f"{field}[{index}]"))
    if add_special and prompt:
        begins, ends = isinstance(prompt[0], str), isinstance(prompt[-1], str)
        ids = tokenizer.with_special(ids, at_start=begins, at_end=ends)
    return tuple(ids)


def checked_token_id(tokenizer: Tokenizer, token_id: int, field: str) -> int:
    """Return `token_id` where the model has such a token. Raises FieldInvalid."""
    if not 0 <= token_id < tokenizer.vocab_size:
        raise FieldInvalid(field, f"must be a token id, 0 to {tokenizer.vocab_size - 1}, but got {token_id}")
    return token_id


async def make_choices(
    engine: Engine,
    body: GenerationBody,
    served: ServedList,
    prompts: Sequence[Prompt],
    field: str = "prompt",
    own_constraint: WantedConstraint | None = None,
) -> list[Choice]:
    """Return one request for each of the `n` choices of each prompt, in the order of the answer, attached to `served`.

    Where the activated adapters of the list act is a matter of the tokens. `field` is where the prompts come from, for
    messages; `own_constraint` stands in for what the body asks for. Raises FieldInvalid, and AdapterUnloaded where the
    list was taken away meanwhile.
    """
    num_slots = engine.loop.scheduler.limits.num_slots
    num_choices = _num_choices(body, num_slots)
    tokenizer = served.tokenizer
    chain = await read_chain(body, tokenizer, engine.settings.chain)
    logit_bias = await in_proportion(lambda: _logit_bias(engine, tokenizer, body), body.logit_bias)
    sampling = _sampling(engine, body, chain, logit_bias)
    max_new_tokens = _max_new_tokens(engine, body)
    eog_ids = _eog_ids(engine, tokenizer, body)
    _check_min_tokens(body.min_tokens, max_new_tokens, eog_ids, sampling, tokenizer)
    wanted = own_constraint or read_constraint(body, tokenizer)
    constraint = None if wanted is None else await compile_constraint(engine.constraints, tokenizer, wanted)
    if constraint is not None:
        sampling = replace(sampling, constraint=constraint.digest)
    rules = replace(body.text_rules, shown_ids=read_preserved(body.preserved_tokens, tokenizer))
    encoded = await encode_prompts(tokenizer, prompts, field, engine.loop.scheduler.limits.max_context)
    in_effect = [served.activate(prompt) for prompt in encoded]
    choices = [
        Choice(
            index=prompt_index * num_choices + choice_index,
            prompt_index=prompt_index,
            request=Request(
                request_id=engine.loop.next_request_id(),
                key=key,
                prompt=prompt,
                sampling=replace(sampling, seed=(sampling.seed + choice_index) % RANDOM_SEED),
                max_new_tokens=max_new_tokens,
                eog_ids=eog_ids,
                min_new_tokens=body.min_tokens,
                prompt_logprobs=body.num_prompt_logprobs,
                slot_id_wanted=None if body.id_slot < 0 else body.id_slot % num_slots,
                reuse_prefix=body.cache_prompt,
                reports_progress=body.stream and body.return_progress,
                activations=activations,
                shift=_shift(engine, body, tokenizer, prompt),
                token_filter=None if constraint is None else constraint.begin(eog_ids),
            ),
            served=served,
            rules=rules,
            constraint=None if wanted is None else wanted.text,
        )
        for prompt_index, (prompt, (key, activations)) in enumerate(zip(encoded, in_effect, strict=True))
        for choice_index in range(num_choices)
    ]
    served.attach(choice.request.request_id for choice in choices)
    return choices


def _num_choices(body: GenerationBody, num_slots: int) -> int:
    """Return how many answers to each prompt are generated, of which `n` are given."""
    for field, count in (("n_cmpl", body.n), ("best_of", body.best_of or 1)):
        if count > num_slots:
            raise FieldInvalid(field, f"Value must be between 1 <= value <= {num_slots}, but got {count}")
    if body.best_of is None or body.best_of in (1, body.n):
        return body.n
    if body.best_of < body.n:
        raise FieldInvalid("best_of", f"must be at least n, which is {body.n}, but got {body.best_of}")
    if body.stream:
        raise FieldInvalid("best_of", f"cannot be streamed where it is more than n, but got {body.best_of}")
    return body.best_of


def _max_new_tokens(engine: Engine, body: GenerationBody) -> int:
    wanted = engine.settings.n_predict if body.n_predict is None else body.n_predict
    if wanted < 0:  # a context is a limit, and where it is shifted the one that the model was trained for
        return engine.model.n_ctx_train if engine.settings.context_shift else engine.model.n_ctx
    return max(wanted, body.min_new_tokens)


def _shift(engine: Engine, body: GenerationBody, tokenizer: Tokenizer, prompt: tuple[int, ...]) -> ContextShift | None:
    if not engine.settings.context_shift:
        return None
    num_keep = engine.settings.keep if body.n_keep is None else body.n_keep
    num_keep = len(prompt) if num_keep < 0 else num_keep
    return ContextShift(num_keep + tokenizer.adds_bos, body.n_discard)


def _eog_ids(engine: Engine, tokenizer: Tokenizer, body: GenerationBody) -> frozenset[int]:
    wanted = set()
    for index, token_id in enumerate(body.stop_token_ids):
        field = f"stop_token_ids[{index}]"
        if not isinstance(token_id, int) or not is_id(token_id):
            raise FieldInvalid(field, f"must be a token id, but is {json_type(token_id)}")
        wanted.add(checked_token_id(tokenizer, token_id, field))
    return frozenset(wanted) if ignores_eos(engine, body) else tokenizer.eog_ids | wanted


def ignores_eos(engine: Engine, body: GenerationBody) -> bool:
    """Return whether no token ends the answers: what the body says, else what the server was started with."""
    return body.ignore_eos if "ignore_eos" in body.model_fields_set else engine.settings.ignore_eos


def _check_min_tokens(
    min_tokens: int, max_new_tokens: int, eog_ids: frozenset[int], sampling: SamplingParams, tokenizer: Tokenizer
) -> None:
    if min_tokens > max_new_tokens:
        raise FieldInvalid("min_tokens", f"must be at most n_predict, which is {max_new_tokens}, but got {min_tokens}")
    forbidden = eog_ids.union(token_id for token_id, bias in sampling.logit_bias if bias == -math.inf)
    if min_tokens and len(forbidden) == tokenizer.vocab_size:
        raise FieldInvalid("min_tokens", "leaves no token: all others are forbidden by logit_bias")


def _sampling(
    engine: Engine, body: GenerationBody, chain: SamplerChain | None, logit_bias: tuple[tuple[int, float], ...]
) -> SamplingParams:
    default = engine.default_sampling
    return SamplingParams(
        temperature=default.temperature if body.temperature is None else max(body.temperature, 0.0),
        top_k=default.top_k if body.top_k is None else max(body.top_k, 0),
        top_p=default.top_p if body.top_p is None else body.top_p,
        min_p=default.min_p if body.min_p is None else body.min_p,
        min_keep=body.min_keep,
        repeat_last_n=default.repeat_last_n if body.repeat_last_n is None else body.repeat_last_n,
        repeat_penalty=default.repeat_penalty if body.repeat_penalty is None else body.repeat_penalty,
        presence_penalty=default.presence_penalty if body.presence_penalty is None else body.presence_penalty,
        frequency_penalty=default.frequency_penalty if body.frequency_penalty is None else body.frequency_penalty,
        logit_bias=logit_bias,
        seed=_seed(default.seed if body.seed is None else body.seed),
        num_logprobs=0 if body.num_logprobs is None and (body.best_of or 1) > body.n else body.num_logprobs,
        post_sampling_probs=body.post_sampling_probs,
        chain=chain,
    )


def _seed(wanted: int) -> int:
    seed = wanted % 2**32
    return secrets.randbelow(RANDOM_SEED) if seed == RANDOM_SEED else seed


def _logit_bias(engine: Engine, tokenizer: Tokenizer, body: GenerationBody) -> tuple[tuple[int, float], ...]:
    bias = dict(engine.settings.logit_bias) if body.logit_bias is None else {}
    for token_id, value, field in _bias_entries(tokenizer, body.logit_bias):
        bias[checked_token_id(tokenizer, token_id, field)] = _bias_value(value, field)
    if ignores_eos(engine, body):
        bias.update((token_id, -math.inf) for token_id in tokenizer.eog_ids)
    if sum(value == -math.inf for value in bias.values()) == tokenizer.vocab_size:
        raise FieldInvalid("logit_bias", "forbids every token of the vocabulary")
    return tuple(sorted(bias.items()))


def _bias_entries(tokenizer: Tokenizer, value: object) -> Iterator[tuple[int, object, str]]:
    """Yield (token id, bias, name of the entry): `[[id or text, number or false], …]` or `{"id or text": number or
    false}`.
    """
    entries = list(value.items()) if isinstance(value, dict) else value
    if entries is None:
        return
    if not isinstance(entries, list):
        raise FieldInvalid("logit_bias", f"must be an array of pairs or an object, but is {json_type(value)}")
    for index, entry in enumerate(entries):
        field = f"logit_bias[{index}]"
        if not isinstance(entry, list | tuple) or len(entry) != 2:
            raise FieldInvalid(field, "must be a pair of a token and its bias")
        token, bias = entry
        if isinstance(value, dict) and token.isdecimal():
            token = _read_id(token, field)
        if is_id(token):
            yield token, bias, field
        elif isinstance(token, str):
            for token_id in tokenizer.encode(token, add_special=False, parse_special=True):
                yield token_id, bias, field
        else:
            raise FieldInvalid(field, f"must name a token by id or text, but got {json_type(token)}")


def _read_id(digits: str, field: str) -> int:
    try:
        return int(digits)
    except ValueError:  # more digits than Python reads
        raise FieldInvalid(field, f"must name a token, but is a number of {len(digits)} digits") from None


def _bias_value(value: object, field: str) -> float:
    if value is False:
        return -math.inf
    if not isinstance(value, int | float) or isinstance(value, bool) or not abs(value) <= MAX_PENALTY:
        raise FieldInvalid(field, f"the bias must be false or a number of at most {MAX_PENALTY:g}, but got {value}")
    return float(value)
