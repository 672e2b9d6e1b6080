"""Which tokens of a vocabulary are for filling in the middle (FIM): what stands before the text in front of a gap, the
text behind it, and what is to be filled in; and between the files of a repository.

Checkpoints name them in their metadata (GGUF) or not at all; then they are known by their texts, as in llama.cpp
(src/llama-vocab.cpp). Source of the scheme: Bavarian et al., arXiv 2207.14255; Qwen2.5-Coder, arXiv 2409.12186.
"""

from collections.abc import Mapping
from dataclasses import dataclass

_KNOWN: Mapping[str, tuple[str, ...]] = {
    "prefix": (
        *("<|fim_prefix|>", "<fim-prefix>", "<fim_prefix>", "<｜fim▁begin｜>", "<PRE>", "▁<PRE>"),
        *("<|code_prefix|>", "<|prefix|>"),
    ),
    "suffix": (
        *("<|fim_suffix|>", "<fim-suffix>", "<fim_suffix>", "<｜fim▁hole｜>", "<SUF>", "▁<SUF>"),
        *("<|code_suffix|>", "<|suffix|>"),
    ),
    "middle": (
        *("<|fim_middle|>", "<fim-middle>", "<fim_middle>", "<｜fim▁end｜>", "<MID>", "▁<MID>"),
        *("<|code_middle|>", "<|middle|>"),
    ),
    "repository": ("<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"),
    "separator": ("<|file_sep|>",),
}


@dataclass(frozen=True, slots=True)
class FimTokens:
    """Their ids; None where the vocabulary has none."""

    prefix: int | None = None
    suffix: int | None = None
    middle: int | None = None
    repository: int | None = None
    """Before the name of a repository."""
    separator: int | None = None
    """Before the name of a file."""

    @property
    def missing(self) -> list[str]:
        """The names of those that filling in cannot do without."""
        needed = {"prefix": self.prefix, "suffix": self.suffix, "middle": self.middle}
        return [name for name, token_id in needed.items() if token_id is None]


NO_FIM = FimTokens()


def fim_tokens(ids: Mapping[str, int], named: Mapping[str, int | None]) -> FimTokens:
    """Return the tokens for filling in: those that the metadata has `named`, by the fields of `FimTokens`, else those
    of `ids`, all tokens by text, that are known."""
    found: dict[str, int | None] = {}
    for role, texts in _KNOWN.items():
        known = next((ids[text] for text in texts if text in ids), None)
        found[role] = known if named.get(role) is None else named[role]
    return FimTokens(**found)
