"""Which adapter list a request gets: the one resolver that every generating route asks, and the scales the server
applies by default.

It knows names, ids, scales and invocation tokens, never weights. The rules are llama-server's (absent or empty: the
current scales; otherwise every adapter not named is 0, a missing scale is 0, of a repeated id the last wins); what that
server takes silently is refused here, with the field and its value.
"""

import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from scheduler.cohort import Activation, Activations, AdapterId, CohortKey, cohort_key
from server.errors import BodyInvalid, FieldInvalid


@dataclass(frozen=True, slots=True)
class AdapterCard:
    """What the server says about a loaded adapter. Its id over HTTP is its index: the order of the command line."""

    id: AdapterId
    name: str
    """Selects the adapter at scale 1 where a request sends it as `model`. Unique, without commas."""
    path: str
    task_name: str = ""
    prompt_prefix: str = ""
    invocation_tokens: tuple[int, ...] = ()
    """The adapter acts from their last occurrence in a prompt on (aLoRA); empty where it acts on all tokens."""
    invocation_text: str = ""


class AdapterListError(FieldInvalid):
    """An adapter list that cannot be honoured; names the field and the value. Nothing has changed."""

    def __init__(self, field: str, value: object, reason: str) -> None:
        super().__init__(field, f"{reason}, but got {json.dumps(value)[:200]}")


class AdapterRegistry:
    """The loaded adapters in command-line order, and their current scales."""

    def __init__(self, adapters: Sequence[AdapterCard] = (), scales: Sequence[float] = ()) -> None:
        assert len(adapters) == len(scales), f"{len(adapters)} adapters, {len(scales)} scales"
        assert len({card.name for card in adapters}) == len(adapters), "two adapters have one name"
        self.adapters = tuple(adapters)
        self._names = {card.id: card.name for card in adapters}
        self._invocations = {card.id: card.invocation_tokens for card in adapters if card.invocation_tokens}
        self.scales = tuple(float(scale) for scale in scales)

    @property
    def current_key(self) -> CohortKey:
        """The key of a request that names no adapter list."""
        return self._key(self.scales)

    def resolve(self, lora: object, model: str | None) -> CohortKey:
        """Return the key of the list that a request's fields `lora` and `model` ask for.

        `lora` is the JSON value as sent, None where absent. A `model` that names no adapter means the current scales,
        whatever it is. Raises AdapterListError.
        """
        if lora is not None:
            scales = self._read(lora, "lora")
            if lora:
                return self._key(scales)
        for card in self.adapters:
            if card.name == model:
                return cohort_key([(card.id, 1.0)])
        return self.current_key

    def activate(self, key: CohortKey, prompt: tuple[int, ...]) -> tuple[CohortKey, Activations]:
        """Return the list that takes effect on a prompt, and where its activated adapters begin to act.

        An adapter whose invocation is not in the prompt does not act on it, and is not in the list.
        """
        dormant: list[AdapterId] = []
        activations: list[Activation] = []
        for adapter, _ in key:
            invocation = self._invocations.get(adapter)
            if invocation is not None:
                start = last_occurrence(prompt, invocation)
                if start is None:
                    dormant.append(adapter)
                else:
                    activations.append(Activation(start, adapter))
        return tuple(pair for pair in key if pair[0] not in dormant), tuple(activations)

    def set_scales(self, body: object) -> None:
        """Replace the current scales by the list `body`: every adapter not named gets 0. Raises BodyInvalid or
        AdapterListError.
        """
        if not isinstance(body, list):
            raise BodyInvalid("Request body must be an array")
        self.scales = self._read(body, "")

    def name_of(self, adapter: AdapterId) -> str:
        """Return the name of a loaded adapter. Raises KeyError."""
        return self._names[adapter]

    def names_adapter(self, model: str | None) -> bool:
        """Whether `model` is the name of a loaded adapter."""
        return any(card.name == model for card in self.adapters)

    def scales_of(self, key: CohortKey) -> list[dict[str, object]]:
        """Return `key` as a list for JSON: one `{"id", "scale"}` for each loaded adapter, 0 included, so that it can
        be sent back as it is.
        """
        scale_by_id = dict(key)
        return [
            {"id": index, "scale": _shortest(scale_by_id.get(card.id, 0.0))} for index, card in enumerate(self.adapters)
        ]

    def _key(self, scales: Sequence[float]) -> CohortKey:
        return cohort_key((card.id, scale) for card, scale in zip(self.adapters, scales, strict=True))

    def _read(self, value: object, field: str) -> tuple[float, ...]:
        if not isinstance(value, list):
            raise AdapterListError(field, value, "must be an array of objects with 'id' and 'scale' fields")
        scales = [0.0] * len(self.adapters)
        for index, entry in enumerate(value):
            name = f"{field}[{index}]"
            if not isinstance(entry, dict):
                raise AdapterListError(name, entry, "must be an object with 'id' and 'scale' fields")
            adapter = self._read_id(entry.get("id"), f"{name}.id")
            scales[adapter] = self._read_scale(entry.get("scale"), adapter, f"{name}.scale")
        return tuple(scales)

    def _read_id(self, value: object, field: str) -> int:
        if not isinstance(value, int) or isinstance(value, bool):
            raise AdapterListError(field, value, "must be a whole number, the id of a loaded adapter")
        if not self.adapters:
            raise AdapterListError(field, value, "no adapter is loaded; start the server with --lora")
        if not 0 <= value < len(self.adapters):
            raise AdapterListError(field, value, f"must be the id of a loaded adapter, 0 to {len(self.adapters) - 1}")
        return value

    def _read_scale(self, value: object, adapter: int, field: str) -> float:
        if value is None:
            return 0.0
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise AdapterListError(field, value, "must be a number")
        try:
            scale = float(value)
            cohort_key([(self.adapters[adapter].id, scale)])
        except (OverflowError, ValueError):
            raise AdapterListError(field, value, "must be a finite number in float32") from None
        return scale


def last_occurrence(tokens: tuple[int, ...], wanted: tuple[int, ...]) -> int | None:
    """Return where `wanted` begins in `tokens` for the last time, or None where it never does."""
    for start in range(len(tokens) - len(wanted), -1, -1):
        if tokens[start] == wanted[0] and tokens[start : start + len(wanted)] == wanted:
            return start
    return None


def _shortest(scale: float) -> float:
    """Return the shortest decimal number that rounds to the same float32, as people wrote it: 0.3, not
    0.30000001192092896.
    """
    for digits in range(1, 10):
        candidate = float(f"{scale:.{digits}g}")
        if struct.pack("f", candidate) == struct.pack("f", scale):
            return candidate
    return scale
