"""Whether the differences that the comparison lets pass are documented."""

from tests.differential.answers import DOCUMENTED, Call
from tests.differential.shape import Difference
from tests.load.demo_server import ROOT


def test_every_difference_that_passes_has_a_line_in_the_documentation() -> None:
    documentation = (ROOT / "docs" / "compatibility.md").read_text(encoding="utf-8")

    assert [known.line for known in DOCUMENTED if known.line not in documentation] == []


def test_a_difference_passes_only_where_call_path_and_kind_fit() -> None:
    [known] = [known for known in DOCUMENTED if known.calls == "idle slots"]

    path = "*.next_token.*.has_new_line"
    assert known.covers(Call("idle slots", "/slots"), Difference(path, "missing"))
    assert not known.covers(Call("idle slots", "/slots"), Difference(path, "type"))
    assert not known.covers(Call("idle slots", "/slots"), Difference("*.params", "missing"))
    assert not known.covers(Call("props", "/props"), Difference(path, "missing"))
