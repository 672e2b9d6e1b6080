"""Make constraints: from the text of a grammar, a schema or a regular expression to what filters a request's tokens.

Compiling takes milliseconds, and belongs on a thread beside the event loop; what would take much more is refused
(check.py). What was compiled for a vocabulary is kept, so that a hundred requests with one schema compile
it once. Knows no HTTP.
"""

import hashlib
import json
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from enum import StrEnum

from llguidance import LLMatcher, regex_to_lark

from model.constraints.check import CPU_LIMIT_S, GrammarChecker, new_matcher
from model.constraints.filter import CompiledConstraint, ConstraintFilter, MaskThreads
from model.constraints.gbnf import GbnfError, gbnf_to_lark
from model.constraints.schema_types import with_types
from model.constraints.thinking import Thinking, whole_grammar
from model.constraints.triggers import TriggerError, Triggers, TriggerSearch
from model.constraints.vocabulary import ConstraintFailed, TokenVocabulary, engine_message
from model.tokens.tokenizer import Tokenizer

MAX_CHARACTERS = 1 << 16
"""Of a constraint's text, unless it says otherwise."""
_MAX_KEPT = 64
_MAX_VOCABULARIES = 4
_WHITESPACE = r"[ ]|\n{1,2}[ \t]{0,20}"
"""Between the tokens of JSON: llama-server's. With more, a model can write blanks until its limit."""
_LARK_MARK = re.compile(r"^[ \t]*(?:%llguidance\b|start[ \t]*:(?!:=))", re.MULTILINE)


class ConstraintError(ValueError):
    """A text that is no constraint; says why."""


def is_lark(text: str) -> bool:
    """Whether the text of a grammar is one of llguidance's, not GBNF: it says so, or has the rule `start`."""
    return _LARK_MARK.search(text) is not None


class Syntax(StrEnum):
    """The language of a constraint's text."""

    GBNF = "gbnf"
    """llama.cpp's grammars."""
    JSON_SCHEMA = "json_schema"
    REGEX = "regex"
    LARK = "lark"
    """llguidance's own, with `%json {schema}`, `<token>` and `/regex/`."""


@dataclass(frozen=True, slots=True)
class ConstraintText:
    """What a request asks for. Equal ones allow the same."""

    syntax: Syntax
    text: str
    triggers: Triggers | None = None
    """Where it begins to hold, in free text; None: at the first token."""
    preserved: frozenset[int] = frozenset()
    """Control tokens that may come where the constraint allows their text."""
    thinking: Thinking | None = None
    """What may come before the text that the constraint is about, which has no triggers then."""
    max_characters: int = MAX_CHARACTERS

    @property
    def as_grammar(self) -> str:
        """The same as the text of a grammar, GBNF or llguidance's own."""
        if self.syntax is Syntax.GBNF or (self.syntax is Syntax.LARK and is_lark(self.text)):
            return self.text
        return f"%llguidance {{}}\n{_lark(self)}"


class Constraint:
    """A compiled constraint, for any number of requests."""

    def __init__(self, compiled: CompiledConstraint, digest: str, threads: MaskThreads) -> None:
        self.compiled = compiled
        self.digest = digest
        """Says which tokens it allows: equal ones allow the same."""
        self._threads = threads

    def begin(self, end_ids: Iterable[int] = ()) -> ConstraintFilter:
        """Return the filter of one request's tokens, before the first of them. `end_ids` end the request beside the
        vocabulary's own: they may come where the text may end, too.
        """
        return ConstraintFilter(self.compiled, self._threads, frozenset(end_ids))


class ConstraintCompiler:
    """Compiles constraints, one after the other, and keeps those that were asked for last."""

    def __init__(self, cpu_limit_s: float = CPU_LIMIT_S) -> None:
        """Starts no thread yet. A text that takes the processor longer to compile is refused."""
        self._kept: OrderedDict[tuple[str, int, ConstraintText], Constraint] = OrderedDict()
        self._vocabularies: OrderedDict[tuple[str, int], TokenVocabulary] = OrderedDict()
        self._lock = threading.Lock()
        self._checker = GrammarChecker(cpu_limit_s)
        self._compiling = ThreadPoolExecutor(max_workers=1, thread_name_prefix="constraint")
        usual, slow = (ThreadPoolExecutor(max_workers=1, thread_name_prefix=name) for name in ("mask", "slow mask"))
        self._masking = MaskThreads(usual, slow)

    def kept(self, tokenizer: Tokenizer, text: ConstraintText) -> Constraint | None:
        """Return a constraint that was compiled before, None where it was not."""
        key = (tokenizer.digest, tokenizer.vocab_size, text)
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
            return self._kept.get(key)

    def compile(self, tokenizer: Tokenizer, text: ConstraintText) -> Future[Constraint]:
        """Return the constraint that `text` describes, for the tokens of `tokenizer`, or a ConstraintError."""
        return self._compiling.submit(self._compile_once, tokenizer, text)

    def prepare(self, tokenizer: Tokenizer) -> None:
        """Lay out the vocabulary of `tokenizer` now, so that no request waits for it: tenths of a second."""
        self._compiling.submit(self._vocabulary, tokenizer).result()

    def _compile_once(self, tokenizer: Tokenizer, text: ConstraintText) -> Constraint:
        constraint = self.kept(tokenizer, text)
        if constraint is None:
            constraint = self._compile(tokenizer, text)
            with self._lock:
                self._kept[(tokenizer.digest, tokenizer.vocab_size, text)] = constraint
                if len(self._kept) > _MAX_KEPT:
                    self._kept.popitem(last=False)
        return constraint

    def _compile(self, tokenizer: Tokenizer, text: ConstraintText) -> Constraint:
        if len(text.text) > text.max_characters:
            raise ConstraintError(f"has {len(text.text)} characters, the limit is {text.max_characters}")
        vocabulary = self._vocabulary(tokenizer)
        preserved = text.preserved & vocabulary.control_ids
        matcher = self._matcher(text, vocabulary)
        try:
            search = None if text.triggers is None else TriggerSearch(text.triggers, vocabulary, matcher, preserved)
            compiled = CompiledConstraint(matcher, vocabulary, preserved, search)
        except (TriggerError, ConstraintFailed) as failure:
            raise ConstraintError(str(failure)) from None
        asked = (text.syntax, text.text, text.triggers, sorted(text.preserved), text.thinking)
        content = repr((*asked, tokenizer.digest))
        return Constraint(compiled, hashlib.sha256(content.encode()).hexdigest(), self._masking)

    def _matcher(self, text: ConstraintText, vocabulary: TokenVocabulary) -> LLMatcher:
        grammar = whole_grammar(_lark(text, vocabulary.token_named), text.thinking)
        refusal = self._checker.refusal(grammar, vocabulary.size, vocabulary.special_tokens)
        if refusal is not None:
            raise ConstraintError(refusal)
        matcher = new_matcher(vocabulary.lexer_tokens, grammar)
        if matcher.is_error():
            raise ConstraintError(engine_message(matcher.get_error()))
        return matcher

    def _vocabulary(self, tokenizer: Tokenizer) -> TokenVocabulary:
        key = (tokenizer.digest, tokenizer.vocab_size)
        vocabulary = self._vocabularies.pop(key, None) or TokenVocabulary(tokenizer)
        self._vocabularies[key] = vocabulary
        if len(self._vocabularies) > _MAX_VOCABULARIES:
            self._vocabularies.popitem(last=False)
        return vocabulary


def _lark(text: ConstraintText, token_named: Callable[[str], int | None] = lambda _: None) -> str:
    """Return the rules that say the same in llguidance's language. Raises ConstraintError."""
    match text.syntax:
        case Syntax.GBNF:
            try:
                return gbnf_to_lark(text.text, token_named)
            except GbnfError as error:
                raise ConstraintError(str(error)) from None
        case Syntax.JSON_SCHEMA:
            return f"start: %json {schema_with_whitespace(text.text)}"
        case Syntax.REGEX:
            return f"start: /{regex_to_lark(text.text, '')}/"
        case Syntax.LARK:
            return text.text


def schema_with_whitespace(text: str) -> str:
    """Return a JSON schema that says how much whitespace there may be, where it does not. Raises ConstraintError."""
    try:
        schema = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConstraintError(f"is not JSON: {error}") from None
    if schema is True:
        schema = {}
    if not isinstance(schema, dict):
        raise ConstraintError(f"a schema must be an object, but is {text[:200]}")
    options = schema.get("x-guidance", {})
    if not isinstance(options, dict):
        raise ConstraintError("x-guidance must be an object")
    return json.dumps({**with_types(schema), "x-guidance": {"whitespace_pattern": _WHITESPACE, **options}})
