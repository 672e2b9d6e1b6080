"""Tokenizers that adapters ship: agreement with the base model's, added tokens, ends, templates; beside Hugging Face
directories and GGUF files."""

import json
import weakref
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders
from tokenizers import Tokenizer as Encoder
from transformers import PreTrainedTokenizerFast

from model.adapters.tensors import AdapterError
from model.adapters.tokenizer import AdapterTokenizer, AdapterTokenizers, read_adapter_tokenizer, tokenizer_of_list
from model.checkpoint.weights import load_checkpoint
from model.tokens.tokenizer import Tokenizer, load_tokenizer
from model.tokens.tokenizer_hf import vocabulary_from_directory
from tests.model.tokens.test_tokenizer import byte_level_encoder, save, sentencepiece_encoder

BASE_SIZE = 504
"""Tokens of `byte_level_encoder`."""
V = 512
"""Rows of the embedding: some only fill it."""
SETTINGS = {"bos_token": "<s>", "eos_token": "<|im_end|>", "chat_template": "base {{ eos_token }}"}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    directory = save(byte_level_encoder(), tmp_path_factory.mktemp("base"), **SETTINGS)
    return Tokenizer(vocabulary_from_directory(directory), V, eog_ids=[7])


@pytest.fixture(scope="module")
def smollm2(smollm2_path: Path) -> Tokenizer:
    return load_tokenizer(load_checkpoint(smollm2_path))


def with_tokens(*texts: str, special: bool = True) -> Encoder:
    """The base model's encoder after fine-tuning has added tokens."""
    encoder = byte_level_encoder()
    encoder.add_tokens([AddedToken(text, special=special, normalized=False) for text in texts])
    return encoder


def read(directory: Path, base: Tokenizer, vocab_size: int = V, template: str | None = None) -> AdapterTokenizer:
    found = read_adapter_tokenizer(directory, base, vocab_size, template)
    assert found is not None
    return found


def template_of(tokenizer: AdapterTokenizer) -> str:
    assert tokenizer.chat_template is not None
    return tokenizer.chat_template.render([])


def test_a_directory_without_tokenizer_files_ships_none(tmp_path: Path, base: Tokenizer) -> None:
    (tmp_path / "adapter_config.json").write_text("{}")

    assert read_adapter_tokenizer(tmp_path, base, V) is None


def test_the_base_models_own_files_ship_none(tmp_path: Path, base: Tokenizer) -> None:
    assert read_adapter_tokenizer(save(byte_level_encoder(), tmp_path, **SETTINGS), base, V) is None


def test_added_tokens_are_known_to_the_adapters_requests_only(tmp_path: Path, base: Tokenizer) -> None:
    found = read(save(with_tokens("<|think|>"), tmp_path, **SETTINGS), base)

    assert found.added == {BASE_SIZE: "<|think|>"}
    assert found.tokenizer.encode("a<|think|>")[-1:] == [BASE_SIZE]
    assert found.tokenizer.decode([BASE_SIZE]) == "<|think|>"
    assert found.tokenizer.is_control(BASE_SIZE)
    assert base.decode(base.encode("<|think|>")) == "<|think|>"
    assert BASE_SIZE not in base.encode("<|think|>")
    assert base.decode([BASE_SIZE]) == ""
    assert template_of(found) == "base <|im_end|>"


def test_rows_of_the_adapter_extend_the_vocabulary(tmp_path: Path, base: Tokenizer) -> None:
    texts = [f"<|{number}|>" for number in range(10)]
    directory = save(with_tokens(*texts, special=False), tmp_path, **SETTINGS)
    found = read(directory, base, 514)

    assert found.tokenizer.vocab_size == 514
    assert found.tokenizer.encode("".join(texts), parse_special=False) == list(range(504, 514))
    assert not found.tokenizer.is_control(513)
    with pytest.raises(AdapterError, match=r"token 513 '<\|9\|>' .* has no row: the base model has 512, .* are 513"):
        read_adapter_tokenizer(directory, base, 513)


def test_the_base_models_control_tokens_stay_what_they_are(tmp_path: Path, base: Tokenizer) -> None:
    copy = json.loads(with_tokens("<|a|>").to_str())
    for token in copy["added_tokens"]:
        token["special"] = not token["special"]
    found = read(save(Encoder.from_str(json.dumps(copy)), tmp_path, **SETTINGS), base)

    assert [found.tokenizer.is_control(i) for i in range(BASE_SIZE)] == [base.is_control(i) for i in range(BASE_SIZE)]
    assert not found.tokenizer.is_control(BASE_SIZE)


def test_padding_needs_no_row_for_it_is_never_computed(tmp_path: Path, base: Tokenizer) -> None:
    tight = Tokenizer(replace(base.vocabulary, chat_template=None), BASE_SIZE)
    directory = save(with_tokens("[PAD]"), tmp_path, bos_token="<s>", eos_token="<|im_end|>", pad_token="[PAD]")
    assert read_adapter_tokenizer(directory, tight, BASE_SIZE) is None

    found = read(save(with_tokens("[PAD]"), tmp_path, eos_token="<s>", pad_token="[PAD]"), tight, BASE_SIZE)
    assert found.added == {}
    assert found.tokenizer.encode("[PAD]") == tight.encode("[PAD]")


@pytest.mark.parametrize("eos", ["<|turn|>", "<tool_call>"])
def test_the_adapters_end_ends_generation_beside_the_base_models(tmp_path: Path, base: Tokenizer, eos: str) -> None:
    found = read(save(with_tokens("<|turn|>"), tmp_path, bos_token="<s>", eos_token=eos), base)

    [eos_id] = found.tokenizer.encode(eos)
    assert found.tokenizer.eog_ids == base.eog_ids | {eos_id}
    assert found.tokenizer.eos_id == eos_id
    assert found.tokenizer.is_control(eos_id)
    assert template_of(found) == f"base {eos}"
    assert eos_id not in base.eog_ids


def test_known_ends_among_the_added_tokens_end_generation(tmp_path: Path, base: Tokenizer) -> None:
    found = read(save(with_tokens("<end_of_turn>", "<|other|>"), tmp_path, **SETTINGS), base)

    assert found.tokenizer.eog_ids == base.eog_ids | {BASE_SIZE}


@pytest.mark.parametrize("in_file", [True, False])
def test_the_adapters_template_replaces_the_base_models_and_the_operators_replaces_both(
    tmp_path: Path, base: Tokenizer, in_file: bool
) -> None:
    directory = save(byte_level_encoder(), tmp_path, **SETTINGS | ({} if in_file else {"chat_template": "own"}))
    if in_file:
        (directory / "chat_template.jinja").write_text("own")
    found = read(directory, base)

    assert found.added == {}
    assert template_of(found) == "own"
    assert read_adapter_tokenizer(directory, replace_template(base, "operator's"), V, "operator's") is None
    save(with_tokens("<|a|>"), tmp_path, **SETTINGS)
    assert template_of(read(directory, base, template="operator's {{ bos_token }}")) == "operator's <s>"


def replace_template(base: Tokenizer, source: str) -> Tokenizer:
    return Tokenizer(replace(base.vocabulary, chat_template=source), V, base.eog_ids)


def test_another_tokenizer_is_refused_by_its_first_token(tmp_path: Path, base: Tokenizer) -> None:
    save(sentencepiece_encoder(), tmp_path, bos_token="<s>", eos_token="</s>")

    with pytest.raises(AdapterError, match=r"token 0 of the adapter's tokenizer is '<unk>', the base model's is '!'"):
        read_adapter_tokenizer(tmp_path, base, V)


def test_a_tokenizer_that_lacks_a_token_is_refused(tmp_path: Path, base: Tokenizer) -> None:
    encoder = byte_level_encoder()
    copy = json.loads(encoder.to_str())
    copy["added_tokens"].pop()  # <tool_call>
    save(Encoder.from_str(json.dumps(copy)), tmp_path, **SETTINGS)

    with pytest.raises(AdapterError, match="token 503 of the adapter's tokenizer is '', the base model's is '<tool_c"):
        read_adapter_tokenizer(tmp_path, base, V)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, BASE_SIZE - 1), st.sampled_from(["swap", "rename"]))
def test_any_token_that_differs_is_the_one_named(
    tmp_path_factory: pytest.TempPathFactory, base: Tokenizer, token_id: int, kind: str
) -> None:
    copy = json.loads(byte_level_encoder().to_str())
    added = {token["id"]: token for token in copy["added_tokens"]}
    if token_id in added:
        added[token_id]["content"] = "<renamed>"
    else:
        texts = {i: text for text, i in copy["model"]["vocab"].items()}
        other = (token_id + 1) % len(texts)
        wanted = {token_id: texts[other], other: texts[token_id]} if kind == "swap" else {token_id: "renamed!"}
        copy["model"]["vocab"] = {text: i for i, text in (texts | wanted).items()}
        if kind == "rename":
            copy["model"]["merges"] = []
        token_id = min(wanted)
    directory = tmp_path_factory.mktemp("adapter")
    (directory / "tokenizer.json").write_text(json.dumps(copy))

    with pytest.raises(AdapterError, match=rf"token {token_id} of the adapter's tokenizer is|has no such token"):
        read_adapter_tokenizer(directory, base, V)


@pytest.mark.parametrize("older", [True, False])
def test_without_tokenizer_json_tokens_are_added_to_the_base_models(
    tmp_path: Path, base: Tokenizer, older: bool
) -> None:
    if older:
        (tmp_path / "added_tokens.json").write_text(json.dumps({"<|b|>": 505, "<|a|>": 504, "<tool_call>": 503}))
        (tmp_path / "special_tokens_map.json").write_text(json.dumps({"eos_token": {"content": "<|b|>"}}))
    else:
        later = {"504": {"content": "<|a|>"}, "505": {"content": "<|b|>", "special": True}}
        (tmp_path / "tokenizer_config.json").write_text(
            json.dumps({"added_tokens_decoder": later, "eos_token": "<|b|>"})
        )
    found = read(tmp_path, base)

    assert found.added == {504: "<|a|>", 505: "<|b|>"}
    assert found.tokenizer.encode("x<|a|><|b|>")[1:] == [504, 505]
    assert found.tokenizer.encode("x<|b|>", parse_special=False) == base.encode("x<|b|>")
    assert found.tokenizer.eog_ids == base.eog_ids | {505}


def test_an_older_file_may_repeat_what_tokenizer_json_has_and_must_not_contradict_it(
    tmp_path: Path, base: Tokenizer
) -> None:
    save(with_tokens("<|a|>"), tmp_path, **SETTINGS)
    (tmp_path / "added_tokens.json").write_text(json.dumps({"<|a|>": 504}))
    assert read(tmp_path, base).added == {504: "<|a|>"}

    (tmp_path / "added_tokens.json").write_text(json.dumps({"<|a|>": 505}))
    with pytest.raises(AdapterError, match=r"token 505 '<\|a\|>' would not get its id"):
        read_adapter_tokenizer(tmp_path, base, V)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("tokenizer.json", "{", "tokenizer.json: not a readable JSON file"),
        ("tokenizer.json", '{"model": {"type": "BPE"}}', "tokenizer.json: not a tokenizer that can be used"),
        ("tokenizer_config.json", "[]", "a JSON object is needed"),
        ("added_tokens.json", '{"x": "y"}', "x is 'y'; a whole number"),
        ("added_tokens.json", '{"<|a|>": 700}', "token 700 '<|a|>' would not get its id"),
        ("added_tokens.json", '{"<|a|>": 4294967295}', "token 4294967295 '<|a|>' would not get its id"),
        ("chat_template.jinja", "{% if %}", "chat template, line 1"),
        ("chat_template.jinja", "{{ " + "(" * 5000 + " }}", "recursion"),
        ("chat_template.jinja", b"\xff", "codec can't decode byte 0xff"),
    ],
)
def test_a_damaged_file_is_refused_by_name(
    tmp_path: Path, base: Tokenizer, name: str, content: str | bytes, message: str
) -> None:
    (tmp_path / name).write_bytes(content.encode() if isinstance(content, str) else content)

    with pytest.raises(AdapterError) as refused:
        read_adapter_tokenizer(tmp_path, base, V)
    assert message in str(refused.value)


def test_a_token_id_beyond_any_vocabulary_is_refused(tmp_path: Path, base: Tokenizer) -> None:
    copy = json.loads(byte_level_encoder().to_str())
    copy["model"]["vocab"]["far"] = 2**32 - 1
    (tmp_path / "tokenizer.json").write_text(json.dumps(copy))

    with pytest.raises(AdapterError, match="token id 4294967295 is beyond any vocabulary"):
        read_adapter_tokenizer(tmp_path, base, V)


# Beside a GGUF file.


def test_the_same_tokenizer_beside_a_gguf_file_agrees_and_adds(tmp_path: Path, smollm2: Tokenizer) -> None:
    encoder = Encoder.from_str(smollm2.vocabulary.encoder.to_str())
    encoder.decoder = decoders.ByteLevel()
    encoder.add_tokens([AddedToken("<|think|>", special=True)])
    directory = save(encoder, tmp_path, bos_token="<|im_start|>", eos_token="<|im_end|>")
    found = read(directory, smollm2, smollm2.vocab_size + 1)

    assert found.added == {smollm2.vocab_size: "<|think|>"}
    oracle = PreTrainedTokenizerFast(tokenizer_file=str(directory / "tokenizer.json"))
    text = "A new <|think|> token, 1234 <|im_end|>"
    assert found.tokenizer.encode(text) == oracle.encode(text, add_special_tokens=False)
    assert found.tokenizer.decode(found.tokenizer.encode(text)) == text
    assert template_of(found) == base_template(smollm2)
    assert found.tokenizer.eog_ids == smollm2.eog_ids


def base_template(tokenizer: Tokenizer) -> str:
    assert tokenizer.chat_template is not None
    return tokenizer.chat_template.render([])


def test_tokens_are_added_to_a_gguf_files_tokenizer(tmp_path: Path, smollm2: Tokenizer) -> None:
    (tmp_path / "added_tokens.json").write_text(json.dumps({"<|think|>": smollm2.vocab_size}))
    found = read(tmp_path, smollm2, smollm2.vocab_size + 1)

    assert found.tokenizer.encode("a<|think|>") == [*smollm2.encode("a"), smollm2.vocab_size]


def test_an_added_token_takes_a_row_that_a_gguf_file_calls_unused(tmp_path: Path, base: Tokenizer) -> None:
    # As converters write it: every row has a token in the encoder, and the unused ones stand for nothing.
    copy = json.loads(base.vocabulary.encoder.to_str())
    copy["model"]["vocab"] |= {token["content"]: token["id"] for token in copy["added_tokens"]}
    copy["model"]["vocab"] |= {f"[PAD{i}]": i for i in range(BASE_SIZE, V)}
    filled = replace(base.vocabulary, encoder=Encoder.from_str(json.dumps(copy)))
    filled = replace(filled, pieces=(*filled.pieces, *[b""] * (V - BASE_SIZE)))
    (tmp_path / "added_tokens.json").write_text(json.dumps({"<|a|>": 506}))
    found = read(tmp_path, Tokenizer(filled, V))

    assert found.added == {506: "<|a|>"}
    assert found.tokenizer.encode("<|a|>") == [506]


# Many adapters.


def test_adapters_with_the_same_files_share_one_tokenizer_as_long_as_one_uses_it(
    tmp_path: Path, base: Tokenizer
) -> None:
    directories = [tmp_path / name for name in ("one", "two", "other")]
    for directory, text in zip(directories, ("<|a|>", "<|a|>", "<|b|>"), strict=True):
        directory.mkdir()
        save(with_tokens(text), directory, **SETTINGS)
    tokenizers = AdapterTokenizers(base)
    one, two, other = (tokenizers.read(directory, V) for directory in directories)

    assert one is two
    assert one is not None
    assert other is not None
    assert (one.added, other.added) == ({504: "<|a|>"}, {504: "<|b|>"})
    larger = tokenizers.read(directories[0], V + 1)
    assert larger is not None
    assert larger.tokenizer.vocab_size == V + 1
    shared = weakref.ref(one)
    del one, two
    assert shared() is None


def test_changed_files_are_read_again_and_the_base_models_own_are_none(tmp_path: Path, base: Tokenizer) -> None:
    tokenizers = AdapterTokenizers(base)
    assert tokenizers.read(tmp_path, V) is None
    save(byte_level_encoder(), tmp_path, **SETTINGS)
    assert [tokenizers.read(tmp_path, V) for _ in range(2)] == [None, None]
    (tmp_path / "chat_template.jinja").write_text("own")
    found = tokenizers.read(tmp_path, V)
    assert found is not None
    assert template_of(found) == "own"


# Lists.


def shipped(directory: Path, base: Tokenizer, *texts: str, template: str = "own") -> AdapterTokenizer:
    directory.mkdir()
    return read(save(with_tokens(*texts), directory, **SETTINGS | {"chat_template": template}), base)


def test_a_list_gets_the_tokenizer_that_includes_the_others(tmp_path: Path, base: Tokenizer) -> None:
    one, two = shipped(tmp_path / "1", base, "<|a|>"), shipped(tmp_path / "2", base, "<|a|>", "<|b|>")
    own = AdapterTokenizer(base, {}, base.chat_template)

    assert tokenizer_of_list(own, [], V).tokenizer.encode("a") == base.encode("a")
    mixed = tokenizer_of_list(own, [("one", one), ("two", two)], 600)
    assert mixed.added == two.added
    assert mixed.tokenizer.vocab_size == 600
    assert mixed.tokenizer.decode([505, 599]) == "<|b|>"
    assert template_of(mixed) == "own"


def test_adapters_that_disagree_on_the_template_get_the_base_models(tmp_path: Path, base: Tokenizer) -> None:
    one, two = shipped(tmp_path / "1", base, "<|a|>"), shipped(tmp_path / "2", base, "<|a|>", template="other")
    own = AdapterTokenizer(base, {}, base.chat_template)

    assert template_of(tokenizer_of_list(own, [("one", one), ("two", two)], V)) == "base <|im_end|>"


def test_adapters_that_add_different_tokens_cannot_be_mixed(tmp_path: Path, base: Tokenizer) -> None:
    one, two = shipped(tmp_path / "1", base, "<|a|>"), shipped(tmp_path / "2", base, "<|b|>", "<|a|>")
    own = AdapterTokenizer(base, {}, base.chat_template)

    with pytest.raises(AdapterError, match=r"'two' and 'one' cannot be mixed: .*token 504 '<\|a\|>' of 'one'"):
        tokenizer_of_list(own, [("one", one), ("two", two)], V)
