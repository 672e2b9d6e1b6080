"""How text is cut into words before byte-level BPE, by the name that GGUF files give it in `tokenizer.ggml.pre`.

A GGUF file only names the pattern (llama.cpp knows them by name, src/llama-vocab.cpp); the patterns themselves and
their normalisation come from the models' own tokenizer.json: SmolLM2, Llama 3, Qwen2, Mistral Nemo, GPT-2, StarCoder.
"""

from collections.abc import Callable
from dataclasses import dataclass

from tokenizers import Regex, normalizers, pre_tokenizers

_CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_PUNCTUATION_AND_SPACE = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|{_PUNCTUATION_AND_SPACE}"
_QWEN2 = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{_PUNCTUATION_AND_SPACE}"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*|\p{{N}}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """One way to cut text into words, and what comes with it by default."""

    patterns: tuple[str, ...]
    """Applied one after the other: matches become words, and what lies between them too."""
    normalizer: Callable[[], normalizers.Normalizer] | None = None
    ignore_merges: bool = False
    """A word that is a token is that token, whatever the merges say."""
    adds_bos: bool = False

    def build(self) -> pre_tokenizers.PreTokenizer:
        """Return the splitter, which also spells the words in byte-level BPE's characters."""
        splits = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in self.patterns]
        return pre_tokenizers.Sequence([*splits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


_gpt2 = PreTokenizer((_GPT2,))
_digits = PreTokenizer((r"\p{N}", _GPT2))
_llama3 = PreTokenizer((_LLAMA3,), ignore_merges=True, adds_bos=True)
_qwen2 = PreTokenizer((_QWEN2,))

PRE_TOKENIZERS = {
    # llama.cpp's own mixture, for files that were made without a name.
    "default": PreTokenizer((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]")),
    "gpt-2": _gpt2,
    "mellum": _gpt2,
    "smollm": _digits,
    "starcoder": _digits,
    "refact": _digits,
    "minerva-7b": _digits,
    "llama-bpe": _llama3,
    "llama3": _llama3,
    "llama-v3": _llama3,
    "falcon3": _llama3,
    "smaug-bpe": PreTokenizer((_LLAMA3,)),
    "qwen2": PreTokenizer((_QWEN2,), normalizer=normalizers.NFC),
    "deepseek-r1-qwen": _qwen2,
    "megrez": _qwen2,
    "tekken": PreTokenizer((_TEKKEN,), ignore_merges=True, adds_bos=True),
}
