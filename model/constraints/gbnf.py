"""Read llama.cpp's grammars (GBNF) and say the same in the language of llguidance. Knows no tokens and no requests.

llguidance splits a text greedily into lexemes, and GBNF knows none: there every character counts for itself. So a
grammar without recursion becomes one lexeme, which is exact, and in one with recursion every character is a lexeme of
its own, which is exact too, for no character begins with another.

Source: llama.cpp's documentation of GBNF, and its rules for what a grammar may hold.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

MAX_REPETITIONS = 2000
"""llama.cpp's bound of what braces may ask for."""
_MAX_DEPTH = 64
_MAX_CODE_POINT = 0x10FFFF
_SURROGATES = (0xD800, 0xDFFF)
_DIGITS = {"x": 2, "u": 4, "U": 8}
_TOKEN_BY_ID = re.compile(r"<\[([0-9]{1,9})\]>")
_ESCAPES = {"t": "\t", "r": "\r", "n": "\n", "\\": "\\", '"': '"', "[": "[", "]": "]"}


class GbnfError(ValueError):
    """A text that is not a grammar; says where and why."""


@dataclass(frozen=True, slots=True)
class _Class:
    """One character out of ranges, or one out of none of them."""

    ranges: tuple[tuple[int, int], ...]
    is_negated: bool = False


@dataclass(frozen=True, slots=True)
class _Token:
    """One token, or any other."""

    token_id: int
    is_negated: bool


@dataclass(frozen=True, slots=True)
class _Reference:
    name: str
    position: int


@dataclass(frozen=True, slots=True)
class _Repeat:
    node: "_Node"
    least: int
    most: int | None


@dataclass(frozen=True, slots=True)
class _Sequence:
    nodes: tuple["_Node", ...]


@dataclass(frozen=True, slots=True)
class _Choice:
    nodes: tuple["_Node", ...]


_Node: TypeAlias = _Class | _Token | _Reference | _Repeat | _Sequence | _Choice
_ANY = _Class((), is_negated=True)


def gbnf_to_lark(text: str, token_named: Callable[[str], int | None]) -> str:
    """Return the grammar `text` as rules of llguidance, of which `start` is the first.

    `token_named` finds the one token whose text is given. Raises GbnfError.
    """
    reader = _Reader(text, token_named)
    rules = reader.read()
    if "root" not in rules:
        raise GbnfError("has no rule 'root'")
    for rule in rules.values():
        for reference in _references(rule):
            if reference.name not in rules:
                raise reader.error(f"the rule {reference.name!r} is not defined", reference.position)
    order = _reachable(rules)
    is_lexeme = not _has_cycle(rules, order) and not any(_has_tokens(rules[name]) for name in order)
    prefix = "R" if is_lexeme else "r"
    names = {name: f"{prefix}{number}" for number, name in enumerate(order)}
    lines = [f"{names[name]}: {_lark(rules[name], names)}" for name in order]
    return "\n".join([f"start: {names['root']}", *lines])


class _Reader:
    """Recursive descent; `_at` is how much of the text was read."""

    def __init__(self, text: str, token_named: Callable[[str], int | None]) -> None:
        self._text = text
        self._token_named = token_named
        self._at = 0

    def error(self, message: str, position: int | None = None) -> GbnfError:
        before = self._text[: self._at if position is None else position]
        line = before.count("\n") + 1
        return GbnfError(f"line {line}, column {len(before) - before.rfind(chr(10))}: {message}")

    def read(self) -> dict[str, _Node]:
        """Return the rules by name; of two with one name the last."""
        rules: dict[str, _Node] = {}
        self._skip(newlines=True)
        while self._at < len(self._text):
            name = self._name()
            self._skip()
            if not self._takes("::="):
                raise self.error("expecting ::=")
            self._skip(newlines=True)
            rules[name] = self._choice(0)
            if self._at < len(self._text) and self._peek() not in "\r\n":
                raise self.error(f"expecting the end of the line, but got {self._peek()!r}")
            self._skip(newlines=True)
        return rules

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _takes(self, text: str) -> bool:
        if not self._text.startswith(text, self._at):
            return False
        self._at += len(text)
        return True

    def _skip(self, *, newlines: bool = False) -> None:
        """Skip blanks and comments, and the ends of lines where a rule may go on in the next one."""
        while char := self._peek():
            if char == "#":
                ends = [end for mark in "\r\n" if (end := self._text.find(mark, self._at)) >= 0]
                self._at = min(ends, default=len(self._text))
            elif char in " \t" or (newlines and char in "\r\n"):
                self._at += 1
            else:
                return

    def _name(self) -> str:
        start = self._at
        while (char := self._peek()).isascii() and (char.isalnum() or char in ("-", "_")):
            self._at += 1
        if start == self._at:
            raise self.error("expecting the name of a rule")
        return self._text[start : self._at]

    def _choice(self, depth: int) -> _Node:
        """Read alternatives; within parentheses (`depth` above 0) they may go over several lines."""
        if depth > _MAX_DEPTH:
            raise self.error(f"parentheses are nested deeper than {_MAX_DEPTH}")
        alternatives = [self._sequence(depth)]
        while self._takes("|"):
            self._skip(newlines=True)
            alternatives.append(self._sequence(depth))
        return alternatives[0] if len(alternatives) == 1 else _Choice(tuple(alternatives))

    def _sequence(self, depth: int) -> _Node:
        nodes: list[_Node] = []
        while (node := self._item(depth)) is not None:
            self._skip(newlines=depth > 0)
            nodes.append(self._repeated(node, depth))
        return nodes[0] if len(nodes) == 1 else _Sequence(tuple(nodes))

    def _item(self, depth: int) -> _Node | None:
        """Read what may be repeated; None where an alternative ends."""
        char = self._peek()
        if char == '"':
            return self._literal()
        if char == "[":
            return self._class()
        if char == "(":
            self._at += 1
            self._skip(newlines=True)
            node = self._choice(depth + 1)
            if not self._takes(")"):
                raise self.error("expecting ')'")
            return node
        if char == ".":
            self._at += 1
            return _ANY
        if char in ("<", "!"):
            return self._token()
        if char and char in "*+?{":
            raise self.error(f"expecting something before {char!r}")
        if char.isascii() and (char.isalnum() or char in ("-", "_")):
            position = self._at
            return _Reference(self._name(), position)
        return None

    def _literal(self) -> _Node:
        self._at += 1
        chars: list[_Node] = []
        while not self._takes('"'):
            code = self._char()
            chars.append(_Class(((code, code),)))
        return chars[0] if len(chars) == 1 else _Sequence(tuple(chars))

    def _class(self) -> _Node:
        start = self._at
        self._at += 1
        is_negated = self._takes("^")
        ranges: list[tuple[int, int]] = []
        while not self._takes("]"):
            first = last = self._char()
            if self._peek() == "-" and self._text[self._at + 1 : self._at + 2] != "]":
                self._at += 1
                last = self._char()
            if first > last:
                raise self.error(f"the range {chr(first)!r} to {chr(last)!r} is the wrong way round", start)
            ranges.append((first, last))
        if not ranges and not is_negated:
            raise self.error("[] matches no character", start)
        return _Class(tuple(ranges), is_negated)

    def _char(self) -> int:
        """Read one character, or the escape of one; return its code point."""
        char = self._peek()
        if char in ("", "\n", "\r"):
            raise self.error("the text ends within quotes or brackets")
        self._at += 1
        if char != "\\":
            return ord(char)
        kind = self._peek()
        self._at += 1
        if kind in _ESCAPES:
            return ord(_ESCAPES[kind])
        if kind not in _DIGITS:
            raise self.error(f"\\{kind} is no escape", self._at - 2)
        digits = self._text[self._at : self._at + _DIGITS[kind]]
        if len(digits) < _DIGITS[kind] or not set(digits) <= set("0123456789abcdefABCDEF"):
            raise self.error(f"\\{kind} needs {_DIGITS[kind]} hexadecimal digits", self._at - 2)
        self._at += len(digits)
        code = int(digits, 16)
        if code > _MAX_CODE_POINT or _SURROGATES[0] <= code <= _SURROGATES[1]:
            raise self.error(f"\\{kind}{digits} is no character", self._at - 2 - len(digits))
        return code

    def _token(self) -> _Node:
        start = self._at
        is_negated = self._takes("!")
        end = self._text.find(">", self._at)
        name = self._text[self._at : end + 1]
        if not name.startswith("<") or len(name) < 3 or any(char.isspace() for char in name):
            raise self.error("expecting a token as <text> or <[id]>", start)
        self._at = end + 1
        by_id = _TOKEN_BY_ID.fullmatch(name)
        token_id = int(by_id[1]) if by_id else self._token_named(name)
        if token_id is None:
            raise self.error(f"{name} is not the text of one token", start)
        return _Token(token_id, is_negated)

    def _repeated(self, node: _Node, depth: int) -> _Node:
        """Read what says how often `node` comes."""
        for _ in range(_MAX_DEPTH):
            start = self._at
            least: int
            most: int | None
            if self._takes("*"):
                least, most = 0, None
            elif self._takes("+"):
                least, most = 1, None
            elif self._takes("?"):
                least, most = 0, 1
            elif self._takes("{"):
                least, most = self._braces()
            else:
                return node
            if max(least, most or 0) > MAX_REPETITIONS:
                raise self.error(f"more than {MAX_REPETITIONS} repetitions", start)
            node = _Repeat(node, least, most)
            self._skip(newlines=depth > 0)
        raise self.error(f"more than {_MAX_DEPTH} repetitions of repetitions")

    def _braces(self) -> tuple[int, int | None]:
        self._skip(newlines=True)
        least = self._number()
        most: int | None = least
        self._skip(newlines=True)
        if self._takes(","):
            self._skip(newlines=True)
            most = None if self._peek() == "}" else self._number()
            self._skip(newlines=True)
        if not self._takes("}"):
            raise self.error("expecting '}'")
        if most is not None and most < least:
            raise self.error(f"{{{least},{most}}} is the wrong way round")
        return least, most

    def _number(self) -> int:
        start = self._at
        while self._peek() in tuple("0123456789"):
            self._at += 1
        if start == self._at:
            raise self.error("expecting a number")
        return int(self._text[start : min(self._at, start + 9)])


def _children(node: _Node) -> Sequence[_Node]:
    match node:
        case _Sequence() | _Choice():
            return node.nodes
        case _Repeat():
            return (node.node,)
    return ()


def _references(node: _Node) -> list[_Reference]:
    if isinstance(node, _Reference):
        return [node]
    return [reference for child in _children(node) for reference in _references(child)]


def _has_tokens(node: _Node) -> bool:
    return isinstance(node, _Token) or any(map(_has_tokens, _children(node)))


def _reachable(rules: Mapping[str, _Node]) -> list[str]:
    """Return the names of the rules that the root needs, the root first."""
    order = ["root"]
    seen = set(order)
    for name in order:
        for reference in _references(rules[name]):
            if reference.name not in seen:
                seen.add(reference.name)
                order.append(reference.name)
    return order


def _has_cycle(rules: Mapping[str, _Node], names: Sequence[str]) -> bool:
    """Whether a rule needs itself: whether some are left when those that need no other are taken away, repeatedly."""
    needs = {name: {reference.name for reference in _references(rules[name])} for name in names}
    users: dict[str, list[str]] = {name: [] for name in names}
    for name, needed in needs.items():
        for other in needed:
            users[other].append(name)
    done = [name for name in names if not needs[name]]
    for name in done:
        for user in users[name]:
            needs[user].discard(name)
            if not needs[user]:
                done.append(user)
    return len(done) < len(names)


def _lark(node: _Node, names: Mapping[str, str]) -> str:
    match node:
        case _Class():
            return f"/{_regex_class(node)}/"
        case _Token():
            return f"<[{'^' * node.is_negated}{node.token_id}]>"
        case _Reference():
            return names[node.name]
        case _Repeat():
            most = "" if node.most is None else node.most
            return '""' if node.most == 0 else f"({_lark(node.node, names)}){{{node.least},{most}}}"
        case _Sequence():
            return " ".join(_lark(child, names) for child in node.nodes) or '""'
        case _Choice():
            return "(" + " | ".join(_lark(child, names) for child in node.nodes) + ")"


def _regex_class(node: _Class) -> str:
    if not node.ranges:
        return "(?s:.)"
    if len(node.ranges) == 1 and node.ranges[0][0] == node.ranges[0][1] and not node.is_negated:
        return f"\\x{{{node.ranges[0][0]:x}}}"
    ranges = "".join(f"\\x{{{first:x}}}-\\x{{{last:x}}}" for first, last in node.ranges)
    return f"[{'^' * node.is_negated}{ranges}]"
