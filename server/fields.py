"""The types of JSON fields, with llama-server's words for what is wrong with a value. Knows no request."""

import math
from collections.abc import Callable
from typing import Annotated, Literal, TypeAlias

from pydantic import AfterValidator, BeforeValidator, Field
from pydantic_core import PydanticCustomError

MAX_INT32 = 2**31 - 1
MAX_STOP_STRINGS = 128
"""Each character of an answer is compared with every one of them."""
MAX_STOP_CHARACTERS = 2**16
"""Of all together."""


def json_type(value: object) -> str:
    """Return what JSON calls the type of `value`."""
    if value is None:
        return "null"
    for kinds, name in (
        ((bool,), "boolean"),
        ((int, float), "number"),
        ((str,), "string"),
        ((list,), "array"),
        ((dict,), "object"),
    ):
        if isinstance(value, kinds):
            return name
    raise AssertionError(f"{type(value)} does not come from JSON")


def refuse(reason: str) -> PydanticCustomError:
    """Return the error of a field, with braces made safe for pydantic's templates."""
    return PydanticCustomError("field", "{reason}", {"reason": reason})


def _number(value: object) -> int | float:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise refuse(f"type must be number, but is {json_type(value)}")
    if isinstance(value, float) and not math.isfinite(value):
        raise refuse(f"must be a finite number, but got {value}")
    return value


def whole(low: int = -MAX_INT32 - 1, high: int = MAX_INT32) -> BeforeValidator:
    """A whole number within bounds. 5.0 is one; true and "5" are not."""

    def read(value: object) -> int:
        number = _number(value)
        if number != int(number):
            raise refuse(f"must be a whole number, but got {number}")
        return int(_within(number, low, high))

    return BeforeValidator(read, json_schema_input_type=Annotated[int, Field(ge=low, le=high)])


def real(low: float = -math.inf, high: float = math.inf) -> BeforeValidator:
    """A finite number within bounds."""

    def read(value: object) -> float:
        try:
            return float(_within(_number(value), low, high))
        except OverflowError:
            raise refuse("must be a number that float64 can hold") from None

    bounds = Field(ge=low if math.isfinite(low) else None, le=high if math.isfinite(high) else None)
    return BeforeValidator(read, json_schema_input_type=Annotated[float, bounds])


def _within(number: float, low: float, high: float) -> float:
    if not low <= number <= high:
        raise refuse(f"Value must be between {low} <= value <= {high}, but got {number}")
    return number


def one_of(*names: str) -> BeforeValidator:
    """One of these words."""

    def read(value: object) -> object:
        if value not in names:
            raise refuse(f"must be one of {', '.join(names)}, but got {value!r:.200}")
        return value

    return BeforeValidator(read, json_schema_input_type=Literal[names])


def flag_or(*names: str) -> BeforeValidator:
    """True, false, or one of these words."""

    def read(value: object) -> object:
        if not isinstance(value, bool) and value not in names:
            raise refuse(f"must be a boolean or one of {', '.join(names)}, but got {value!r:.200}")
        return value

    return BeforeValidator(read, json_schema_input_type=bool | Literal[names])


def _typed(kind: type, name: str) -> Callable[[object], object]:
    def read(value: object) -> object:
        if not isinstance(value, kind):
            raise refuse(f"type must be {name}, but is {json_type(value)}")
        return value

    return read


def _text_or_texts(value: object) -> tuple[str, ...]:
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise refuse(f"must be a string or an array of strings, but is {json_type(value)}")
    return tuple(texts)


def _bounded_stop(stop: tuple[str, ...]) -> tuple[str, ...]:
    if len(stop) > MAX_STOP_STRINGS:
        raise refuse(f"must be at most {MAX_STOP_STRINGS} strings, but are {len(stop)}")
    num_characters = sum(map(len, stop))
    if num_characters > MAX_STOP_CHARACTERS:
        raise refuse(f"must have at most {MAX_STOP_CHARACTERS} characters together, but has {num_characters}")
    return stop


IS_OBJECT = BeforeValidator(_typed(dict, "object"))
Flag: TypeAlias = Annotated[bool, BeforeValidator(_typed(bool, "boolean"))]
Text: TypeAlias = Annotated[str, BeforeValidator(_typed(str, "string"))]
JsonObject: TypeAlias = Annotated[dict[str, object], IS_OBJECT]
JsonArray: TypeAlias = Annotated[list[object], BeforeValidator(_typed(list, "array"))]
Texts: TypeAlias = Annotated[tuple[str, ...], BeforeValidator(_text_or_texts, json_schema_input_type=str | list[str])]
"""One string or several."""
StopTexts: TypeAlias = Annotated[Texts, AfterValidator(_bounded_stop)]
"""The same, where they end an answer."""
