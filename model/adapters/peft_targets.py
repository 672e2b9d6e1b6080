"""Which modules of the base model an adapter's config names, and with which rank and factor, by PEFT's own rules.

The rules work on the names that the modules had where the adapter was trained, see `Spelling`. Sources:
peft/tuners/tuners_utils.py and peft/utils/other.py of PEFT 0.21.
"""

import math
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from model.adapters.adapter import BaseWeights
from model.adapters.peft_config import ALL_LINEAR, INPUT_EMBEDDING, PeftConfig
from model.adapters.peft_fields import CONFIG_FILE, show
from model.adapters.tensors import AdapterError
from model.bounded_regex import BoundedRegex, Budget, RegexError

EMBEDDING = "model.embed_tokens"
HEAD = "lm_head"

_MIXTRAL = {"gate_proj": "w1", "down_proj": "w2", "up_proj": "w3"}
_PLAIN = re.compile(r"[\w.]+")
_TEXT_PARTS = ("model.language_model.", "language_model.model.")


@dataclass(frozen=True, slots=True)
class Spelling:
    """What the modules were called where the adapter was trained.

    Mixtral's experts were `block_sparse_moe.experts.3.w1` before transformers 5, where they became parts of a stacked
    parameter; in models that also see, the language model lies one level deeper.
    """

    is_mixtral: bool
    text_part: str
    """What stands for 'model.': 'model.language_model.', 'language_model.model.', or 'model.' itself."""

    def module(self, path: str) -> str:
        """Return what the module of a canonical path was called."""
        if self.is_mixtral and ".mlp." in path:
            head, _, last = path.replace(".mlp.", ".block_sparse_moe.").rpartition(".")
            path = f"{head}.{_MIXTRAL.get(last, last)}"
        return self.parameter(path)

    def parameter(self, path: str) -> str:
        """Return what a parameter of a canonical path is called since transformers 5."""
        if path.startswith("model."):
            return self.text_part + path.removeprefix("model.")
        return f"language_model.{path}" if self.text_part.startswith("language_model.") else path


def spelling_of(names: Iterable[str], base: BaseWeights) -> Spelling:
    """Return the spelling of an adapter file, by the names of its tensors without PEFT's prefix."""
    text_part = next((part for name in names for part in _TEXT_PARTS if name.startswith(part)), "model.")
    return Spelling(base.config.family == "mixtral", text_part)


class Targets:
    """A config's answers about the modules of one base model, which go by their canonical paths."""

    def __init__(self, config: PeftConfig, base: BaseWeights, spelling: Spelling, budget: Budget) -> None:
        """`budget`: what all the matching may cost. Raises AdapterError, here as in the answers, naming the field whose
        expression cannot be matched.
        """
        self._config = config
        self._spelling = spelling
        self._budget = budget
        self._is_target = self._name_test("target_modules", config.target_modules or ())
        self._is_excluded = self._name_test("exclude_modules", config.exclude_modules)
        self._saved_tests = [self._part_test("modules_to_save", entry) for entry in config.modules_to_save]
        self._is_target_parameter = self._name_test("target_parameters", config.target_parameters)
        self._ranks = [(self._end_test("rank_pattern", key), rank) for key, rank in config.rank_pattern.items()]
        self._alphas = [(self._end_test("alpha_pattern", key), alpha) for key, alpha in config.alpha_pattern.items()]
        self.ties_embeddings = config.ensure_weight_tying and base.config.tied_embeddings
        tied = (INPUT_EMBEDDING, HEAD)
        self.ties_saved = self.ties_embeddings and any(
            name.rpartition(".")[2] in tied for name in config.modules_to_save
        )
        """Embedding and head share the matrix that was saved in their place."""
        self.ties_deltas = self.ties_embeddings and not self.ties_saved and self._names_either(tied)
        """The deltas of embedding and head are each other's transpose."""

    def key_of_module(self, path: str) -> str | None:
        """Return the name under which PEFT looks up a targeted module's rank and alpha, None for any other module.

        Where the config has no target_modules, every module may be one.
        """
        if self.ties_deltas and path in (EMBEDDING, HEAD):
            return self._spelling.module(path)
        name = self._spelling.module(path)
        return name if self._targets(name, path) else None

    def key_of_weight(self, path: str) -> str | None:
        """Return the same for a module whose weight target_parameters names."""
        names = (f"{self._spelling.module(path)}.weight", f"{self._spelling.parameter(path)}.weight")
        return next((name for name in names if self._is_target_parameter(name)), None)

    def key_of_stack(self, path: str) -> str | None:
        """Return the same for a parameter of stacked experts, 'model.layers.0.mlp.experts.gate_up_proj'."""
        name = self._spelling.parameter(path)
        return name if self._is_target_parameter(name) else None

    def rank(self, key: str) -> int:
        """Return the rank that the config gives a module or parameter."""
        return next((rank for matches, rank in self._ranks if matches(key)), self._config.rank)

    def factor(self, key: str) -> float:
        """Return alpha / rank, or alpha / √rank for rsLoRA."""
        alpha = next((alpha for matches, alpha in self._alphas if matches(key)), self._config.alpha)
        rank = self.rank(key)
        return alpha / (math.sqrt(rank) if self._config.use_rslora else rank)

    def saved(self, paths: Iterable[str]) -> Iterator[tuple[str, str]]:
        """Yield the modules among `paths` that modules_to_save names, each with the entry that does so."""
        entries = (*self._config.modules_to_save, *((INPUT_EMBEDDING, HEAD) if self.ties_saved else ()))
        for path in paths:
            # PEFT compares ends of names without regard to dots: "norm" names every layer's norms too.
            entry = next((entry for entry in entries if self._spelling.module(path).endswith(entry)), None)
            if entry is not None:
                yield path, entry

    def _targets(self, name: str, path: str) -> bool:
        config = self._config
        # PEFT adapts no module that it saves whole, nor a part of one.
        if self._is_excluded(name) or any(is_saved(name) for is_saved in self._saved_tests):
            return False
        if isinstance(config.target_modules, str):
            if config.target_modules.lower() == ALL_LINEAR:
                return path not in (EMBEDDING, HEAD)
            return self._is_target(name)
        if config.target_modules is None or name in config.target_modules:
            return True
        return self._is_target(name) and self._transforms_layer_of(name)

    def _transforms_layer_of(self, name: str) -> bool:
        if not self._config.layers_to_transform:
            return True
        patterns = [rf"(?:^|.*?\.){re.escape(pattern)}\.(\d+)\." for pattern in self._config.layers_pattern]
        for pattern in patterns or [r".*?\.[^.]*\.(\d+)\."]:
            if match := re.match(pattern, name):
                return int(match[1]) in self._config.layers_to_transform
        return False

    def _names_either(self, names: tuple[str, ...]) -> bool:
        modules = self._config.target_modules or ()
        if isinstance(modules, str):
            return any(self._is_target(name) for name in names)
        return any(module.rpartition(".")[2] in names for module in modules)

    def _name_test(self, field: str, modules: str | tuple[str, ...]) -> Callable[[str], bool]:
        """Return whether an expression matches a name, or a list has an end of it."""
        if isinstance(modules, str):
            return self._regex(field, modules, modules)
        wanted = frozenset(modules)
        return lambda name: not wanted.isdisjoint(_ends(name))

    def _end_test(self, field: str, pattern: str) -> Callable[[str], bool]:
        """Return whether a pattern matches a name, or an end of it after a dot."""
        if not _PLAIN.fullmatch(pattern):
            return self._regex(field, pattern, rf"(.*\.)?({pattern})$")

        def matches(name: str) -> bool:
            try:
                self._budget.spend()
            except RegexError as error:
                raise _cannot_match(field, pattern, error) from error
            return _has_end(name, pattern)

        return matches

    def _part_test(self, field: str, pattern: str) -> Callable[[str], bool]:
        """Return whether a pattern matches some parts of a path, from one dot to another."""
        if pattern.isidentifier():
            return lambda name: f".{pattern}." in f".{name}."
        return self._regex(field, pattern, rf"(^|.*\.){pattern}($|\..*)")

    def _regex(self, field: str, shown: str, pattern: str) -> Callable[[str], bool]:
        try:
            regex = BoundedRegex(pattern, self._budget)
        except RegexError as error:
            raise _cannot_match(field, shown, error) from error

        def matches(name: str) -> bool:
            try:
                return regex.matches(name)
            except RegexError as error:
                raise _cannot_match(field, shown, error) from error

        return matches


def _has_end(name: str, pattern: str) -> bool:
    """Whether a pattern that is a plain name, whose dots stand for any character, matches a name or an end of it."""
    before = len(name) - len(pattern)
    if pattern[-1] not in (name[-1], ".") or before < 0 or (before > 0 and name[before - 1] != "."):
        return False
    return all(wanted in (".", found) for wanted, found in zip(pattern, name[before:], strict=True))


def _ends(name: str) -> Iterator[str]:
    yield name
    while "." in name:
        name = name.partition(".")[2]
        yield name


def _cannot_match(field: str, pattern: str, error: RegexError) -> AdapterError:
    return AdapterError(
        f"{CONFIG_FILE}: the expression {show(pattern)} of {field} {error}: list the names of the modules instead"
    )
