"""Whether the differences that the comparison lets pass are documented."""

from tests.differential.answers import DOCUMENTED, Call
from tests.differential.shape import Difference
from tests.load.demo_server import ROOT


def test_every_difference_that_passes_has_a_line_in_the_documentation() -> None:
    documentation = (ROOT / "docs" / "compatibility.md").read_text(encoding="utf-8")

    assert [known.line for known in DOCUMENTED if known.line not in documentation] == []


def test_a_difference_passes_only_where_call_path_and_kind_fit() -> None:
    [known] = [known for known in DOCUMENTED if known.calls == "text of two prompts"]
    call = Call("text of two prompts", "/v1/completions")

    assert known.covers(call, Difference("usage.total_tokens", "value"))
    assert not known.covers(call, Difference("usage.total_tokens", "type"))
    assert not known.covers(call, Difference("choices.*.text", "value"))
    assert not known.covers(Call("text", "/v1/completions"), Difference("usage.total_tokens", "value"))
