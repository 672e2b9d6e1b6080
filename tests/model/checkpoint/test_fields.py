"""A field comes out in its type, or the error names file, field, value and what is wanted."""

from pathlib import Path

import pytest

from model.checkpoint.config import CheckpointError
from model.checkpoint.fields import Fields, printable, read_json_object


def test_values_come_out_in_their_types() -> None:
    fields = Fields({"m.a": 3, "m.b": 2, "m.c": True, "m.d": "x", "m.e": None}, "file", prefix="m.")
    assert (fields.integer("a"), fields.number("b"), fields.flag("c", False), fields.text("d")) == (3, 2.0, True, "x")
    assert "e" in fields
    assert "m.e" not in fields


def test_absent_and_null_values_have_the_default() -> None:
    fields = Fields({"null": None}, "file")
    for name in ("null", "absent"):
        assert (fields.integer(name, 0), fields.number(name, 0.5), fields.text(name, "y")) == (0, 0.5, "y")
        assert fields.flag(name, True) is True


@pytest.mark.parametrize("method", ["integer", "number", "text"])
def test_a_value_without_a_default_must_be_there(method: str) -> None:
    with pytest.raises(CheckpointError, match=r"^file: size is missing; "):
        getattr(Fields({}, "file"), method)("size")


def test_a_whole_number_has_bounds() -> None:
    fields = Fields({"size": 7}, "file")
    assert fields.integer("size", minimum=7, maximum=7) == 7
    with pytest.raises(CheckpointError, match="size is 7; a whole number of at least 8 is needed"):
        fields.integer("size", minimum=8)
    with pytest.raises(CheckpointError, match="size is 7; a whole number of at most 6 is needed"):
        fields.integer("size", maximum=6)


def test_errors_name_file_field_and_a_shortened_value() -> None:
    error = Fields({"m.size": "x" * 1000}, "file", prefix="m.").error("size", "a number is needed")
    assert str(error) == f"file: m.size is '{'x' * 76}...; a number is needed"


def test_a_field_passes_at_its_neutral_values_only() -> None:
    neutral = {"scale": (0, 1)}
    for value in (None, 0, 1, 1.0):
        Fields({"scale": value}, "file").refuse_unless(neutral)
    with pytest.raises(CheckpointError, match="scale is 2; this is not supported, only 0 or 1 or its absence is"):
        Fields({"scale": 2}, "file").refuse_unless(neutral)


def test_an_unreadable_json_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"absent\.json: not a readable JSON file"):
        read_json_object(tmp_path / "absent.json")


def test_what_cannot_be_shown_is_escaped() -> None:
    assert printable("naïve ☃ 'q_proj'") == "naïve ☃ 'q_proj'"
    assert printable("a\nb\x00\ud800\u2028") == "a\\nb\\x00\\ud800\\u2028"
