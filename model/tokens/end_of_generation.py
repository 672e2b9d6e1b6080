"""Decide which tokens end generation: those that the checkpoint names, and those that are known by their text.

Chat models are often published with a single end token although they end a turn with another one; llama.cpp therefore
looks for well-known texts (`special_eog_ids` in src/llama-vocab.cpp), and so do we. Only tokens that the vocabulary
marks as special or added count. `</s>` must be special: Gemma has it as an added token beside `<table>` and `<h1>`, and
there it ends somebody's strikethrough.
"""

from collections.abc import Collection, Iterable, Mapping

KNOWN_ENDS = frozenset(
    {
        "</s>",
        "<eos>",
        "[EOS]",
        "<|endoftext|>",
        "<|end_of_text|>",
        "<|eot_id|>",
        "<|eom_id|>",
        "<|im_end|>",
        "<|end|>",
        "<end_of_turn>",
        "<end_of_utterance>",
        "<EOT>",
        "_<EOT>",
        "[EOT]",
        "<｜end▁of▁sentence｜>",
        # A code model that fills in the middle has left its file when it writes one of these.
        "<|fim_pad|>",
        "<fim-pad>",
        "<fim_pad>",
        "<PAD>",
        "[PAD]",
        "<|fim_repo|>",
        "<|repo_name|>",
        "<fim-repo>",
        "<REPO>",
        "<reponame>",
        "<|file_sep|>",
    }
)


_HARMONY = frozenset({"<|return|>", "<|call|>"})
"""Ends of replies that are made of messages: where both are there, `<|end|>` is only the end of a message."""
_HTML = frozenset({"</s>"})
"""Known ends that are also something else."""


def end_of_generation_ids(
    added: Mapping[str, int], control_ids: Collection[int], named: Iterable[int | None]
) -> frozenset[int]:
    """Return the ids that end generation: all `named`, and the known ones of `added`, the special and added tokens.

    `control_ids` are the special ones.
    """
    ends = KNOWN_ENDS | _HARMONY if added.keys() >= _HARMONY else KNOWN_ENDS
    known = {i for text, i in added.items() if text in ends and (text not in _HTML or i in control_ids)}
    ids = known.union(token_id for token_id in named if token_id is not None)
    return frozenset(ids - {added.get("<|end|>")} if ends is not KNOWN_ENDS else ids)
