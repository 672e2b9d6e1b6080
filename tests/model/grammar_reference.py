"""Grammars as plain trees, their text as GBNF, and which texts they match: tried in every way there is.

The oracle for masks. Slow on purpose: nothing is compiled, and nothing is remembered between texts.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from hypothesis import strategies as st


@dataclass(frozen=True)
class Chars:
    """One character, out of these."""

    chars: str


@dataclass(frozen=True)
class Ref:
    """What a rule matches."""

    name: str


@dataclass(frozen=True)
class Rep:
    """`node` from `least` to `most` times; None: any number."""

    node: "Node"
    least: int
    most: int | None


@dataclass(frozen=True)
class Seq:
    """One after the other."""

    nodes: tuple["Node", ...]


@dataclass(frozen=True)
class Alt:
    """One of them."""

    nodes: tuple["Node", ...]


Node: TypeAlias = Chars | Ref | Rep | Seq | Alt
Rules: TypeAlias = Mapping[str, Node]
ALPHABET = "abé"


def literal(text: str) -> Node:
    """Return what matches this text alone."""
    return Seq(tuple(map(Chars, text)))


def gbnf(rules: Rules) -> str:
    """Return the text of a grammar."""
    return "\n".join(f"{name} ::= {_text(node)}  # a comment" for name, node in rules.items())


def _text(node: Node) -> str:
    match node:
        case Chars(chars):
            return f'"{chars}"' if len(chars) == 1 else f"[{chars}]"
        case Ref(name):
            return name
        case Rep(inner, least, most):
            return f"({_text(inner)}){{{least},{'' if most is None else most}}}"
        case Seq(nodes):
            return "(" + " ".join(map(_text, nodes)) + ")"
        case Alt(nodes):
            return "(" + " | ".join(map(_text, nodes)) + ")"


def grammars(*, recursive: bool) -> st.SearchStrategy[Rules]:
    """Return grammars of three rules, whose rules may need themselves or not."""
    names = ("root", "one", "two")

    def rules(bodies: tuple[Node, ...]) -> Rules:
        return dict(zip(names, bodies, strict=True))

    return st.tuples(*(_nodes(names if recursive else names[i + 1 :]) for i in range(3))).map(rules)


def _nodes(names: tuple[str, ...]) -> st.SearchStrategy[Node]:
    chars = st.sampled_from([*ALPHABET, "ab", "aé"]).map(Chars)
    leaves: st.SearchStrategy[Node] = chars | st.sampled_from(names).map(Ref) if names else chars

    def more(inner: st.SearchStrategy[Node]) -> st.SearchStrategy[Node]:
        several = st.lists(inner, min_size=0, max_size=3).map(tuple)
        alternatives = st.lists(inner, min_size=1, max_size=3).map(tuple)
        bounds = st.sampled_from([(0, 1), (0, None), (1, None), (2, 2), (1, 3), (0, 2)])
        repeated = st.builds(lambda node, bound: Rep(node, *bound), inner, bounds)
        return several.map(Seq) | alternatives.map(Alt) | repeated

    return st.recursive(leaves, more, max_leaves=5)


class Matcher:
    """Whether a text matches a grammar, or begins one that does."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules

    def is_productive(self) -> bool:
        """Whether every rule matches some text."""
        productive: set[str] = set()
        for _ in self.rules:
            productive |= {name for name, node in self.rules.items() if self._can_match(node, productive)}
        return productive == set(self.rules)

    def _can_match(self, node: Node, productive: set[str]) -> bool:
        match node:
            case Chars():
                return True
            case Ref(name):
                return name in productive
            case Rep(inner, least, _):
                return least == 0 or self._can_match(inner, productive)
            case Seq(nodes):
                return all(self._can_match(inner, productive) for inner in nodes)
            case Alt(nodes):
                return any(self._can_match(inner, productive) for inner in nodes)

    def matches(self, text: str) -> bool:
        """Whether the whole text does."""
        return len(text) in self._run(text)[0]

    def can_go_on(self, text: str) -> bool:
        """Whether a longer text that begins with it matches. All rules are productive."""
        return self._run(text)[1]

    def _run(self, text: str) -> tuple[set[int], bool]:
        """Return where matches of the root end, and whether one of its characters was looked for behind the text."""
        ends: dict[tuple[str, int], set[int]] = {}
        while True:
            before = {key: set(found) for key, found in ends.items()}
            wanted = {("root", 0)}
            looked_behind = False
            for name, start in (pending := [("root", 0)]):
                found, behind, needed = self._ends(self.rules[name], {start}, text, ends)
                ends.setdefault((name, start), set()).update(found)
                looked_behind |= behind
                for key in needed - wanted:
                    wanted.add(key)
                    pending.append(key)
            if ends == before:
                return ends["root", 0], looked_behind

    def _ends(
        self, node: Node, starts: set[int], text: str, ends: Mapping[tuple[str, int], set[int]]
    ) -> tuple[set[int], bool, set[tuple[str, int]]]:
        match node:
            case Chars(chars):
                found = {start + 1 for start in starts if text[start : start + 1] and text[start] in chars}
                return found, len(text) in starts, set()
            case Ref(name):
                needed = {(name, start) for start in starts}
                return set().union(*(ends.get(key, set()) for key in needed)), False, needed
            case Seq(nodes):
                behind, all_needed = False, set[tuple[str, int]]()
                for inner in nodes:
                    starts, looked, needed = self._ends(inner, starts, text, ends)
                    behind, all_needed = behind or looked, all_needed | needed
                return starts, behind, all_needed
            case Alt(nodes):
                outcomes = [self._ends(inner, starts, text, ends) for inner in nodes]
                found = set[int]().union(*(outcome[0] for outcome in outcomes))
                needed = set[tuple[str, int]]().union(*(outcome[2] for outcome in outcomes))
                return found, any(outcome[1] for outcome in outcomes), needed
            case Rep(inner, least, most):
                found, behind, all_needed = set(starts if least == 0 else ()), False, set[tuple[str, int]]()
                for count in range(1, (least + len(text) + 1 if most is None else most) + 1):
                    starts, looked, needed = self._ends(inner, starts, text, ends)
                    behind, all_needed = behind or looked, all_needed | needed
                    found |= starts if count >= least else set()
                return found, behind, all_needed
