"""Tokenizers from GGUF metadata, against transformers and against SentencePiece's algorithm in plain Python."""

import json
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Encoder
from tokenizers import models, pre_tokenizers, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerBase, Qwen2Tokenizer

from model.checkpoint.config import CheckpointError
from model.checkpoint.weights import load_checkpoint
from model.tokens.tokenizer import Tokenizer, load_tokenizer
from model.tokens.tokenizer_gguf import TokenKind, vocabulary_from_gguf
from tests.model.texts import TEXTS

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = (int(kind) for kind in TokenKind)


@pytest.fixture(scope="module")
def smollm2(smollm2_path: Path) -> Tokenizer:
    return load_tokenizer(load_checkpoint(smollm2_path))


@pytest.fixture(scope="module")
def smollm2_oracle(smollm2_path: Path) -> PreTrainedTokenizerBase:
    oracle = AutoTokenizer.from_pretrained(smollm2_path.parent, gguf_file=smollm2_path.name)
    # transformers takes every GGUF file for GPT-2's; SmolLM2's own tokenizer.json sets each digit apart first.
    digits, byte_level = pre_tokenizers.Digits(individual_digits=True), oracle.backend_tokenizer.pre_tokenizer
    oracle.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, byte_level])
    return oracle


@pytest.mark.parametrize("text", TEXTS)
def test_smollm2_gives_the_ids_of_transformers(
    smollm2: Tokenizer, smollm2_oracle: PreTrainedTokenizerBase, text: str
) -> None:
    assert smollm2.encode(text) == smollm2_oracle.encode(text, add_special_tokens=False)


def test_smollm2s_special_tokens(smollm2: Tokenizer) -> None:
    assert (smollm2.bos_id, smollm2.eos_id, smollm2.adds_bos) == (1, 2, False)
    assert (smollm2.bos_text, smollm2.eos_text) == ("<|im_start|>", "<|im_end|>")
    # As llama.cpp has it: <reponame> marks where a code model begins another repository.
    assert {smollm2.decode([i]) for i in smollm2.eog_ids} == {"<|endoftext|>", "<|im_end|>", "<reponame>"}
    assert all(smollm2.is_control(i) for i in range(17))
    assert smollm2.encode("hi", add_special=True) == smollm2.encode("hi")


def test_smollm2s_every_piece_is_what_transformers_decodes(
    smollm2: Tokenizer, smollm2_oracle: PreTrainedTokenizerBase
) -> None:
    ids = range(smollm2.vocab_size)

    expected = smollm2_oracle.batch_decode([[i] for i in ids], clean_up_tokenization_spaces=False)

    assert [smollm2.decode([i]) for i in ids] == expected


@settings(max_examples=300, deadline=None)
@given(text=st.text())
def test_smollm2s_pieces_joined_are_the_text(smollm2: Tokenizer, text: str) -> None:
    # Its vocabulary has no token for some bytes, those of rare scripts; every implementation drops them.
    known = {piece for i in range(smollm2.vocab_size) if len(piece := smollm2.piece(i)) == 1}
    expected = bytes(byte for byte in text.encode() if bytes([byte]) in known)
    for parse_special in (True, False):
        ids = smollm2.encode(text, parse_special=parse_special)

        assert b"".join(map(smollm2.piece, ids)) == expected


def byte_level_metadata(**changes: object) -> dict[str, object]:
    """Byte-level BPE trained on the test texts, with two control tokens and a user-defined one at its end."""
    encoder = Encoder(models.BPE())
    encoder.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=500, initial_alphabet=alphabet, show_progress=False)
    encoder.train_from_iterator(TEXTS, trainer)
    ordered = sorted(encoder.get_vocab().items(), key=lambda item: item[1])
    tokens = [token for token, _ in ordered] + ["<|im_start|>", "<|im_end|>", "<think>"]
    metadata: dict[str, object] = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "qwen2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [NORMAL] * len(ordered) + [CONTROL, CONTROL, USER_DEFINED],
        "tokenizer.ggml.merges": [f"{left} {right}" for left, right in merges_of(encoder)],
        "tokenizer.ggml.eos_token_id": len(ordered) + 1,
    }
    metadata.update({f"tokenizer.ggml.{key}": value for key, value in changes.items()})
    return {key: value for key, value in metadata.items() if value is not None}


def merges_of(encoder: Encoder) -> list[tuple[str, str]]:
    return [(left, right) for left, right in json.loads(encoder.to_str())["model"]["merges"]]


def load(metadata: dict[str, object], vocab_size: int = 1000) -> Tokenizer:
    return Tokenizer(vocabulary_from_gguf(metadata, "a.gguf"), vocab_size)


@pytest.fixture(scope="module")
def qwen2() -> tuple[Tokenizer, PreTrainedTokenizerBase]:
    metadata = byte_level_metadata()
    tokens, merges = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.merges"]
    assert isinstance(tokens, list)
    assert isinstance(merges, list)
    oracle = Qwen2Tokenizer(
        vocab={token: i for i, token in enumerate(tokens)},
        merges=[tuple(merge.split(" ")) for merge in merges],
        unk_token=None,
        pad_token=None,
        eos_token="<|im_end|>",
        additional_special_tokens=["<|im_start|>", "<think>"],
    )
    return load(metadata), oracle


@pytest.mark.parametrize("text", TEXTS)
def test_a_qwen2_file_gives_the_ids_of_transformers(
    qwen2: tuple[Tokenizer, PreTrainedTokenizerBase], text: str
) -> None:
    tokenizer, oracle = qwen2

    assert tokenizer.encode(text) == oracle.encode(text, add_special_tokens=False)


def test_control_tokens_are_special_and_user_defined_ones_are_not() -> None:
    tokenizer = load(byte_level_metadata())
    [im_end] = tokenizer.encode("<|im_end|>")
    [think] = tokenizer.encode("<think>")

    assert (tokenizer.is_control(im_end), tokenizer.is_control(think)) == (True, False)
    assert len(tokenizer.encode("<|im_end|>", parse_special=False)) > 1
    assert tokenizer.encode("<think>", parse_special=False) == [think]
    assert tokenizer.eog_ids == {im_end}


def test_a_word_that_is_a_token_skips_the_merges_where_the_model_was_made_so() -> None:
    # "abc" can be made from (ab, c), but by the order of merges (b, c) comes first.
    tokens = ["a", "b", "c", "bc", "ab", "abc"]
    changes = {"tokens": tokens, "token_type": None, "merges": ["b c", "a b", "ab c"], "eos_token_id": None}

    by_merges = load(byte_level_metadata(**changes))
    by_words = load(byte_level_metadata(**changes, pre="llama-bpe", bos_token_id=0))

    assert by_merges.encode("abc") == [0, 3]
    assert by_words.encode("abc") == [5]
    assert by_words.encode("abc", add_special=True) == [0, 5]


SENTENCEPIECE_TOKENS = [
    *("<unk>", "<s>", "</s>"),
    *(f"<0x{byte:02X}>" for byte in range(256)),
    *("▁", "a", "b", "c", "é", "日"),
    *("ab", "▁a", "bc", "▁ab", "abc", "▁▁", "▁▁▁▁", "ca", "aa", "aaa", "bcab", "<|user|>"),
]


def sentencepiece_metadata(**changes: object) -> dict[str, object]:
    """Like Llama 2's: control tokens, bytes, characters, then pieces in the order in which they were learnt."""
    count = len(SENTENCEPIECE_TOKENS)
    first_piece = SENTENCEPIECE_TOKENS.index("ab")
    metadata: dict[str, object] = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": SENTENCEPIECE_TOKENS,
        "tokenizer.ggml.token_type": [
            *(UNKNOWN, CONTROL, CONTROL),
            *([BYTE] * 256),
            *([NORMAL] * (count - 260)),
            USER_DEFINED,
        ],
        "tokenizer.ggml.scores": [float(min(0, first_piece - i)) for i in range(count)],
    }
    metadata.update({f"tokenizer.ggml.{key}": value for key, value in changes.items()})
    return {key: value for key, value in metadata.items() if value is not None}


def sentencepiece_reference(text: str) -> list[int]:
    """SentencePiece's BPE: of all neighbours that make a piece, join those of highest score, the first of equals."""
    ids = {token: i for i, token in enumerate(SENTENCEPIECE_TOKENS)}
    symbols = list(("▁" + text).replace(" ", "▁")) if text else []
    while True:
        joined = [a + b for a, b in pairwise(symbols)]
        candidates = [(ids[piece], i) for i, piece in enumerate(joined) if ids.get(piece, 0) >= 259]
        if not candidates:
            break
        _, i = min(candidates)  # scores fall as ids rise
        symbols[i : i + 2] = [joined[i]]
    found: list[int] = []
    for symbol in symbols:
        found += [ids[symbol]] if symbol in ids else [ids[f"<0x{byte:02X}>"] for byte in symbol.encode()]
    return found


@pytest.fixture(scope="module")
def llama() -> Tokenizer:
    return load(sentencepiece_metadata())


@settings(max_examples=500, deadline=None)
@given(text=st.text("abc é日!", max_size=24))
def test_a_llama_file_gives_the_ids_of_sentencepiece(llama: Tokenizer, text: str) -> None:
    assert llama.encode(text) == sentencepiece_reference(text)


@settings(max_examples=200, deadline=None)
@given(text=st.text())
def test_a_llama_files_pieces_joined_are_the_text_after_its_space(llama: Tokenizer, text: str) -> None:
    ids = llama.encode(text, parse_special=False)

    assert llama.decode(ids) == (" " + text if text else "").replace("▁", " ")


def test_a_llama_file_begins_with_bos_and_puts_a_space_after_every_special_token(llama: Tokenizer) -> None:
    assert llama.decode(llama.encode("ab<s>ab<|user|>ab", add_special=True)) == "<s> ab<s> ab<|user|> ab"
    assert (llama.bos_id, llama.eos_id, llama.adds_bos) == (1, 2, True)
    assert llama.eog_ids == {2}


@pytest.mark.parametrize("adds", [True, False])
def test_a_file_says_whether_texts_end_with_eos(adds: bool) -> None:
    tokenizer = load(sentencepiece_metadata(add_eos_token=adds))

    assert tokenizer.vocabulary.adds_eos is adds
    assert tokenizer.decode(tokenizer.encode("ab", add_special=True)) == "<s> ab" + "</s>" * adds


def test_the_space_can_be_left_out() -> None:
    tokenizer = load(sentencepiece_metadata(add_space_prefix=False, add_bos_token=False))

    assert tokenizer.decode(tokenizer.encode("ab<s>ab", add_special=True)) == "ab<s>ab"


def test_unused_tokens_have_no_text() -> None:
    tokens = [*SENTENCEPIECE_TOKENS[:-1], "[PAD]"]
    kinds = sentencepiece_metadata()["tokenizer.ggml.token_type"]
    assert isinstance(kinds, list)
    tokenizer = load(sentencepiece_metadata(tokens=tokens, token_type=[*kinds[:-1], UNUSED]))

    assert tokenizer.piece(len(tokens) - 1) == b""
    assert tokenizer.eog_ids == {2}


def test_templates_come_from_the_file() -> None:
    metadata = sentencepiece_metadata()
    metadata["tokenizer.chat_template"] = "{{ bos_token }}{{ eos_token }}{{ unk_token }}"
    metadata["tokenizer.chat_template.tool_use"] = "tools"
    template = load(metadata).chat_template

    assert template is not None
    assert (template.render([]), template.render([], tools=[{}])) == ("<s></s><unk>", "tools")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": "bert"}, r"a\.gguf: tokenizer\.ggml\.model is 'bert'; 'gpt2' .* are supported"),
        ({"model": None}, r"tokenizer\.ggml\.model is missing"),
        ({"pre": "klingon"}, r"tokenizer\.ggml\.pre is 'klingon'; .* qwen2"),
        ({"tokens": None}, r"tokens is missing"),
        ({"tokens": ["a", "b", "a"], "token_type": None}, "token 2 and token 0 are both 'a'"),
        ({"token_type": [1]}, r"token_type is \[1\]; 503 numbers are needed"),
        ({"merges": None}, "merges is missing"),
        ({"merges": ["t h", "q~"]}, r"merge 1 is 'q~': two tokens that make a third"),
        ({"eos_token_id": 503}, r"eos_token_id is 503; a token id from 0 to 502"),
        ({"add_bos_token": True}, r"bos_token_id is missing; add_bos_token is true"),
        ({"add_eos_token": True, "eos_token_id": None}, r"eos_token_id is missing; add_eos_token is true"),
        ({"add_bos_token": 1}, r"add_bos_token is 1; true or false"),
    ],
)
def test_a_field_that_cannot_be_honoured_is_named(changes: dict[str, object], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        load(byte_level_metadata(**changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"scores": None}, "scores is missing"),
        ({"scores": [0.0]}, r"scores is \[0\.0\]; 277 numbers are needed"),
        ({"scores": ["0"] * 277}, "277 numbers are needed"),
        ({"scores": [float("nan")] * 277}, "277 numbers are needed"),
        ({"remove_extra_whitespaces": True}, "remove_extra_whitespaces is True; this is not supported"),
    ],
)
def test_a_llama_field_that_cannot_be_honoured_is_named(changes: dict[str, object], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        load(sentencepiece_metadata(**changes))
