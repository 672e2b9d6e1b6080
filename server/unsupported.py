"""Which known request fields are refused, and at which values they ask for nothing and so are accepted.

A field that is accepted is honoured. These belong to features that the server does not have: at a neutral value they
change nothing, at any other the answer is a 400 that names field and value. Fields that only tune such a feature
(`grammar_lazy`, …) change nothing while it is off, and are ignored.
"""

import json
from collections.abc import Mapping

from server.errors import FieldInvalid

_NEUTRAL: dict[str, tuple[object, ...]] = {
    # Samplers.
    "backend_sampling": (False,),
    "length_penalty": (1,),
    "use_beam_search": (False,),
    # Tools in their older form.
    "functions": ([],),
    "function_call": ("none", "auto"),
    # Limits and layout of the answer.
    "t_max_prompt_ms": (-1, 0),
    "audio": (),
    "modalities": (["text"],),
    # Context shifting and reuse across it.
    "n_cache_reuse": (0,),
    "truncate_prompt_tokens": (),
}

_NEUTRAL_BUDGETS: dict[str, tuple[object, ...]] = {
    "reasoning_budget_tokens": (-1,),
    "thinking_budget_tokens": (-1,),
    "reasoning_budget_message": ("",),
}

NEUTRAL_WITHOUT_CHAT: dict[str, tuple[object, ...]] = {
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "reasoning_format": ("none", "auto"),
    **_NEUTRAL_BUDGETS,
}
"""What means nothing where there are no messages."""

NEUTRAL_FOR_ONE_TEXT: dict[str, tuple[object, ...]] = {
    "n": (1,),
    "n_cmpl": (1,),
    "best_of": (1,),
    "logprobs": (False, 0),
    "n_probs": (0,),
    "top_logprobs": (0,),
    "echo": (False,),
    "suffix": ("",),
    "verbose": (False,),
    "return_tokens": (False,),
    "response_fields": ([],),
    "reasoning_format": ("auto",),
    **_NEUTRAL_BUDGETS,
}
"""What answers of one text and nothing else have no place for."""

_SILENT = frozenset(
    {
        *("chat_format", "parallel_tool_calls"),
        *("metadata", "priority", "request_id", "service_tier", "store", "user"),
        *("prompt_cache_key", "safety_identifier"),
    }
)
"""Fields that change nothing here whatever they hold, and are no reason for a line in the log."""

KNOWN = frozenset(_NEUTRAL) | _SILENT
"""Every field this file decides about."""


def refuse_unsupported(body: Mapping[str, object]) -> None:
    """Raise FieldInvalid where `body` asks for a feature that the server does not have. null asks for nothing."""
    refuse_unless_neutral(body, _NEUTRAL)


def refuse_unless_neutral(body: Mapping[str, object], neutral_values: Mapping[str, tuple[object, ...]]) -> None:
    """Raise FieldInvalid where a field of `body` has a value other than null and the neutral ones given for it."""
    for field, value in body.items():
        neutral = neutral_values.get(field)
        if value is None or neutral is None or any(_same(value, accepted) for accepted in neutral):
            continue
        accepted_values = " or ".join([json.dumps(accepted) for accepted in neutral] or ["no value"])
        raise FieldInvalid(
            field, f"is not supported; only {accepted_values} is accepted, but got {json.dumps(value)[:200]}"
        )


def _same(value: object, accepted: object) -> bool:
    return value == accepted and isinstance(value, bool) == isinstance(accepted, bool)
