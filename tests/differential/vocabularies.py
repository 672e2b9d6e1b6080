"""Write tiny GGUF models that are nothing but a vocabulary: one for each way to cut text into words, and for each kind
of SentencePiece. The vocabularies are trained here, on this repository's own text."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import gguf
import numpy as np
from tokenizers import Tokenizer, models, trainers
from tokenizers import pre_tokenizers as tokenizers_pre

from model.tokens.pre_tokenizers import PRE_TOKENIZERS
from model.tokens.vocabulary import SPACE
from tests.differential.corpus import texts
from tests.load.demo_server import ROOT

_VOCAB_SIZE = 1500
_HIDDEN, _FEED_FORWARD, _HEADS, _CONTEXT = 32, 64, 2, 4096
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, BYTE = (
    int(kind)
    for kind in (
        gguf.TokenType.NORMAL,
        gguf.TokenType.UNKNOWN,
        gguf.TokenType.CONTROL,
        gguf.TokenType.USER_DEFINED,
        gguf.TokenType.BYTE,
    )
)
_CONTROL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_USER_DEFINED = ("<think>", "</think>", "    ")


def write_byte_level(folder: Path) -> Iterator[tuple[str, Path]]:
    """Write a model for each pre-tokenizer that GGUF files can name; yield its name and file."""
    for name in PRE_TOKENIZERS:
        yield f"bpe {name}", write_model(folder / f"bpe-{name}.gguf", byte_level(name))


def byte_level(pre_tokenizer: str) -> dict[str, object]:
    """Return a vocabulary of byte-level BPE as keys of `tokenizer.ggml`, trained on words cut this way."""
    encoder = Tokenizer(models.BPE())
    encoder.pre_tokenizer = PRE_TOKENIZERS[pre_tokenizer].build()
    alphabet = tokenizers_pre.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=_VOCAB_SIZE, initial_alphabet=alphabet, show_progress=False)
    encoder.train_from_iterator(_training_texts(), trainer)
    learnt = _tokens(encoder)
    return {
        "model": "gpt2",
        "pre": pre_tokenizer,
        "tokens": [*_CONTROL, *learnt, *_USER_DEFINED],
        "token_type": [CONTROL] * len(_CONTROL) + [NORMAL] * len(learnt) + [USER_DEFINED] * len(_USER_DEFINED),
        "merges": _merges(encoder),
        "bos_token_id": 0,
        "eos_token_id": 2,
    }


def write_sentencepiece(folder: Path) -> Iterator[tuple[str, Path]]:
    """Write a model for SentencePiece's BPE with and without the space in front; yield name and file."""
    encoder = Tokenizer(models.BPE())
    encoder.pre_tokenizer = tokenizers_pre.Metaspace(replacement=SPACE, prepend_scheme="always")
    trainer = trainers.BpeTrainer(vocab_size=_VOCAB_SIZE, show_progress=False, limit_alphabet=400)
    encoder.train_from_iterator(_training_texts(), trainer)
    learnt = _tokens(encoder)
    characters = [token for token in learnt if len(token) == 1]
    pieces = [token for token in learnt if len(token) > 1]
    data = [f"<0x{byte:02X}>" for byte in range(256)]
    tokens = ["<unk>", "<s>", "</s>", *data, *pieces, *characters, "<|user|>", "<h1>"]
    kinds = [UNKNOWN, CONTROL, CONTROL, *[BYTE] * 256, *[NORMAL] * len(learnt), CONTROL, USER_DEFINED]
    scores = [0.0] * 259 + [-float(rank) for rank in range(len(learnt))] + [0.0, 0.0]
    for prefix in (True, False):
        metadata: dict[str, object] = {
            "model": "llama",
            "tokens": tokens,
            "token_type": kinds,
            "scores": scores,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "unknown_token_id": 0,
            "add_bos_token": prefix,
            "add_space_prefix": prefix,
        }
        name = "spm with a space in front" if prefix else "spm without one"
        yield name, write_model(folder / f"spm-{prefix}.gguf", metadata)


def write_model(path: Path, tokenizer: Mapping[str, object], chat_template: str | None = None) -> Path:
    """Write a llama of one layer of zeros with the keys `tokenizer.ggml.…` and a chat template."""
    tokens = tokenizer["tokens"]
    assert isinstance(tokens, list)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    writer.add_vocab_size(len(tokens))
    writer.add_context_length(_CONTEXT)
    writer.add_embedding_length(_HIDDEN)
    writer.add_block_count(1)
    writer.add_feed_forward_length(_FEED_FORWARD)
    writer.add_head_count(_HEADS)
    writer.add_head_count_kv(_HEADS)
    writer.add_rope_dimension_count(_HIDDEN // _HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    _add_tokenizer(writer, tokenizer)
    if chat_template is not None:
        writer.add_chat_template(chat_template)
    for name, shape in _shapes(len(tokens)).items():
        writer.add_tensor(name, np.zeros(shape, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_tokenizer(writer: gguf.GGUFWriter, tokenizer: Mapping[str, object]) -> None:
    for key, value in tokenizer.items():
        name = f"tokenizer.ggml.{key}"
        match value:
            case bool():
                writer.add_bool(name, value)
            case int():
                writer.add_uint32(name, value)
            case str():
                writer.add_string(name, value)
            case _:
                writer.add_array(name, value)


def _shapes(vocab_size: int) -> dict[str, tuple[int, ...]]:
    square = (_HIDDEN, _HIDDEN)
    layer = {
        "attn_norm": (_HIDDEN,),
        "ffn_norm": (_HIDDEN,),
        **dict.fromkeys(("attn_q", "attn_k", "attn_v", "attn_output"), square),
        "ffn_gate": (_FEED_FORWARD, _HIDDEN),
        "ffn_up": (_FEED_FORWARD, _HIDDEN),
        "ffn_down": (_HIDDEN, _FEED_FORWARD),
    }
    return {
        "token_embd.weight": (vocab_size, _HIDDEN),
        "output_norm.weight": (_HIDDEN,),
        **{f"blk.0.{name}.weight": shape for name, shape in layer.items()},
    }


def _training_texts() -> Iterator[str]:
    for path in sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("server/*.py")]):
        yield path.read_text(encoding="utf-8")
    yield from [text.replace("\0", "") for text in texts(0)] * 3  # llama.cpp reads tokens as C strings


def _tokens(encoder: Tokenizer) -> list[str]:
    ordered: list[tuple[str, int]] = sorted(encoder.get_vocab().items(), key=lambda item: item[1])
    return [token for token, _ in ordered]


def _merges(encoder: Tokenizer) -> list[str]:
    return [" ".join(pair) for pair in json.loads(encoder.to_str())["model"]["merges"]]
