"""A reply that thinks before its constraint begins: the rules of both as one grammar.

The thoughts are any text up to the end tag, and blank space may follow that, which is layout. Where the prompt has not
begun to think, the model chooses whether to.
"""

import json
import re
from dataclasses import dataclass

_OPTIONS = '%llguidance {"no_forcing": true}\n'
"""What a grammar forces is left to the model to split into tokens, as in llama.cpp: masks are then exact."""


@dataclass(frozen=True, slots=True)
class Thinking:
    """What a reply may begin with."""

    start: str
    end: str
    is_begun: bool
    """Whether the prompt ends behind the start tag."""
    is_allowed: bool = True
    """Whether there may be thoughts; without them what comes before the text may still stand there."""
    behind: str = ""
    """What comes behind the thoughts, in replies made of messages."""
    before_text: str = ""
    """What comes before the text, in such replies."""
    excluded: tuple[str, ...] = ()
    """Words that are in no thought."""


def whole_grammar(rules: str, thinking: Thinking | None) -> str:
    """Return what llguidance compiles: the rules of a constraint, behind thinking where there is some."""
    if thinking is None:
        return json.dumps({"grammars": [{"lark_grammar": _OPTIONS + rules}]})
    thoughts = f"thoughts space {json.dumps(thinking.behind)}" if thinking.behind else "thoughts space"
    if not thinking.is_begun:
        thoughts = f"({json.dumps(thinking.start)} {thoughts})?" if thinking.is_allowed else ""
    before_text = json.dumps(thinking.before_text) if thinking.before_text else ""
    thought = "/(?s:.*)/" + "".join(f" & ~/(?s:.*){re.escape(word)}(?s:.*)/" for word in thinking.excluded)
    reply = (
        f"{_OPTIONS}start: {thoughts} {before_text} @constrained\n"
        f"thoughts[suffix={json.dumps(thinking.end)}]: {thought}\n"
        "space: /[ \\n]{0,2}/\n"
    )
    return json.dumps(
        {"grammars": [{"lark_grammar": reply}, {"name": "constrained", "lark_grammar": _OPTIONS + rules}]}
    )
