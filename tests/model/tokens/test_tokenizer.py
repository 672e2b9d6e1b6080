"""Tokenizers of Hugging Face directories against transformers, and what Tokenizer adds to every vocabulary."""

import json
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors, trainers
from tokenizers import Tokenizer as Encoder
from transformers import PreTrainedTokenizerFast

from model.checkpoint.config import CheckpointError
from model.checkpoint.weights import load_checkpoint
from model.tokens.chat_template import TemplateError
from model.tokens.tokenizer import Tokenizer, load_tokenizer
from model.tokens.tokenizer_hf import vocabulary_from_directory
from tests.model.texts import TEXTS
from tests.model.tiny import make_model

VOCAB_SIZE = 600


def byte_level_encoder() -> Encoder:
    """Like Qwen2's: NFC-free byte-level BPE, trained on the test texts, with special and added tokens."""
    encoder = Encoder(models.BPE())
    encoder.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    encoder.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=500, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    encoder.train_from_iterator(TEXTS, trainer)
    encoder.add_special_tokens([AddedToken(text, special=True) for text in ("<|im_start|>", "<|im_end|>", "<s>")])
    encoder.add_tokens([AddedToken("<tool_call>", special=False, normalized=False)])
    return encoder


def sentencepiece_encoder() -> Encoder:
    """Like Llama 2's: BPE over ▁-text with byte fallback, BOS from the post-processor."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *"▁helowrd,!", "he", "▁he", "ll"]
    encoder = Encoder(
        models.BPE(
            vocab={token: i for i, token in enumerate(tokens)},
            merges=[("h", "e"), ("▁", "he"), ("l", "l")],
            unk_token="<unk>",
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    encoder.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    encoder.decoder = decoders.Sequence(steps)
    encoder.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    encoder.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in tokens[:3]])
    return encoder


def save(encoder: Encoder, directory: Path, **settings: object) -> Path:
    encoder.save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))
    return directory


def load(directory: Path) -> Tokenizer:
    return Tokenizer(vocabulary_from_directory(directory), VOCAB_SIZE)


@pytest.fixture(scope="module")
def byte_level(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("byte_level")
    return save(byte_level_encoder(), directory, bos_token="<s>", eos_token={"content": "<|im_end|>"})


@pytest.fixture(scope="module")
def sentencepiece(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("sentencepiece")
    return save(sentencepiece_encoder(), directory, bos_token="<s>", eos_token="</s>", unk_token="<unk>")


@pytest.fixture(scope="module")
def byte_level_tokenizer(byte_level: Path) -> Tokenizer:
    return load(byte_level)


@pytest.fixture(scope="module")
def sentencepiece_tokenizer(sentencepiece: Path) -> Tokenizer:
    return load(sentencepiece)


@pytest.mark.parametrize("kind", ["byte_level", "sentencepiece"])
@pytest.mark.parametrize("text", TEXTS)
def test_ids_are_those_of_transformers(kind: str, text: str, request: pytest.FixtureRequest) -> None:
    directory: Path = request.getfixturevalue(kind)
    oracle = PreTrainedTokenizerFast(tokenizer_file=str(directory / "tokenizer.json"))

    assert load(directory).encode(text) == oracle.encode(text, add_special_tokens=False)


@settings(max_examples=200, deadline=None)
@given(text=st.text())
def test_byte_level_pieces_joined_are_the_text(byte_level_tokenizer: Tokenizer, text: str) -> None:
    tokenizer = byte_level_tokenizer
    ids = tokenizer.encode(text)

    assert b"".join(map(tokenizer.piece, ids)) == text.encode()
    assert tokenizer.decode(ids) == text


@settings(max_examples=200, deadline=None)
@given(text=st.text())
def test_sentencepiece_pieces_joined_are_the_text_after_its_space(
    sentencepiece_tokenizer: Tokenizer, text: str
) -> None:
    tokenizer = sentencepiece_tokenizer

    ids = tokenizer.encode(text, parse_special=False)

    # A text's own ▁ cannot be told from a space: such is the format.
    assert tokenizer.decode(ids) == (" " + text if text else "").replace("▁", " ")


@pytest.mark.parametrize("text", TEXTS)
def test_unparsed_special_tokens_are_text_like_any_other(byte_level: Path, text: str) -> None:
    tokenizer = load(byte_level)
    ids = tokenizer.encode(text, parse_special=False)

    assert not {"<|im_start|>", "<|im_end|>", "<s>"} & {tokenizer.decode([i]) for i in ids}
    assert tokenizer.decode(ids) == text
    assert tokenizer.encode("<|im_end|>") == [tokenizer.eos_id]  # and the next text is parsed again


def test_threads_do_not_disturb_each_others_parsing(byte_level: Path) -> None:
    tokenizer = load(byte_level)
    text = "<|im_start|>" * 20
    wrong: list[int] = []

    def encode(parse_special: bool) -> None:
        for _ in range(200):
            ids = tokenizer.encode(text, parse_special=parse_special)
            if (len(ids) == 20) != parse_special:
                wrong.append(len(ids))

    threads = [threading.Thread(target=encode, args=(flag,)) for flag in (True, False, True, False)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert wrong == []


def test_a_long_text_has_the_ids_of_its_parts(byte_level: Path) -> None:
    tokenizer = load(byte_level)
    part = "<|im_start|>user says: h\u00e9llo"
    for parse_special in (True, False):
        ids = tokenizer.encode(part, parse_special=parse_special)
        assert tokenizer.encode(f"{part}\n" * 400, parse_special=parse_special) == [
            *(ids + tokenizer.encode("\n")) * 400
        ]


def test_other_threads_go_on_while_a_long_text_is_encoded(byte_level: Path) -> None:
    tokenizer = load(byte_level)
    order = []
    begun = threading.Event()

    def encode() -> None:
        begun.set()
        tokenizer.encode("the quick brown fox " * 50_000)
        order.append("encoded")

    thread = threading.Thread(target=encode)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1000)  # a thread runs until it lets go
    try:
        thread.start()
        begun.wait()
        order.append("went on")
        thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert order == ["went on", "encoded"]


def test_added_tokens_that_are_not_special_are_always_parsed(byte_level: Path) -> None:
    tokenizer = load(byte_level)

    [token_id] = tokenizer.encode("<tool_call>", parse_special=False)
    assert tokenizer.decode([token_id]) == "<tool_call>"
    assert not tokenizer.is_control(token_id)


def test_bos_is_added_where_the_post_processor_writes_it(sentencepiece: Path, byte_level: Path) -> None:
    llama, qwen = load(sentencepiece), load(byte_level)

    assert (llama.adds_bos, qwen.adds_bos) == (True, False)
    assert llama.encode("hell", add_special=True) == [llama.bos_id, *llama.encode("hell")]
    assert llama.encode("", add_special=True) == [llama.bos_id]
    assert qwen.encode("hell", add_special=True) == qwen.encode("hell")


def test_bos_is_not_added_to_a_text_that_begins_with_it(sentencepiece: Path) -> None:
    tokenizer = load(sentencepiece)

    assert tokenizer.encode("<s>hell", add_special=True) == tokenizer.encode("<s>hell")
    assert tokenizer.encode("<s>hell")[0] == tokenizer.bos_id


@pytest.mark.parametrize("adds", [True, False])
def test_add_bos_token_overrules_the_post_processor(tmp_path: Path, adds: bool) -> None:
    encoder = byte_level_encoder() if adds else sentencepiece_encoder()

    assert load(save(encoder, tmp_path, bos_token="<s>", add_bos_token=adds)).adds_bos is adds


def test_eos_is_added_where_the_file_says_so_or_its_post_processor_writes_it(
    tmp_path: Path, sentencepiece: Path
) -> None:
    assert not load(sentencepiece).vocabulary.adds_eos
    encoder = sentencepiece_encoder()
    ends = [("<s>", encoder.token_to_id("<s>")), ("</s>", encoder.token_to_id("</s>"))]
    encoder.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=ends)
    for number, flags in enumerate(({}, {"add_eos_token": True}, {"add_eos_token": False})):
        folder = tmp_path / str(number)
        folder.mkdir()
        tokenizer = load(save(encoder, folder, bos_token="<s>", eos_token="</s>", **flags))
        ends_with = [tokenizer.eos_id] if flags.get("add_eos_token", True) else []
        plain = tokenizer.encode("hell")
        assert tokenizer.encode("hell", add_special=True) == [tokenizer.bos_id, *plain, *ends_with]
        assert tokenizer.encode("hell</s>", add_special=True) == [tokenizer.bos_id, *plain, tokenizer.eos_id]


def test_truncation_and_padding_of_the_file_do_not_touch_prompts(tmp_path: Path) -> None:
    encoder = byte_level_encoder()
    encoder.enable_truncation(max_length=3)
    encoder.enable_padding(length=10)
    tokenizer = load(save(encoder, tmp_path))

    assert tokenizer.decode(tokenizer.encode("a longer text than three tokens")) == "a longer text than three tokens"
    assert len(tokenizer.encode("a")) == 1


def test_tokens_added_by_fine_tuning_are_known(tmp_path: Path) -> None:
    encoder = byte_level_encoder()
    token_id = encoder.get_vocab_size()
    later = {str(token_id): {"content": "<|new|>", "special": True}}
    tokenizer = load(save(encoder, tmp_path, added_tokens_decoder=later, eos_token="<|new|>"))

    assert tokenizer.encode("a<|new|>")[-1:] == [token_id] == [tokenizer.eos_id]
    assert tokenizer.piece(token_id) == b"<|new|>"


def test_a_token_whose_id_would_not_be_its_own_is_refused(tmp_path: Path) -> None:
    later = {"599": {"content": "<|new|>"}}

    with pytest.raises(CheckpointError, match=r"token 599 '<\|new\|>' would not get its id"):
        load(save(byte_level_encoder(), tmp_path, added_tokens_decoder=later))


def test_lone_surrogates_become_replacement_characters(byte_level: Path) -> None:
    tokenizer = load(byte_level)

    assert tokenizer.decode(tokenizer.encode("a\ud800b")) == "a\ufffdb"
    assert tokenizer.decode(tokenizer.encode("\U0001f600")) == "\U0001f600"


def test_invalid_utf8_is_decoded_to_replacement_characters(sentencepiece: Path) -> None:
    tokenizer = load(sentencepiece)
    ids = tokenizer.encode("é")

    assert [tokenizer.piece(i) for i in ids] == [b" ", b"\xc3", b"\xa9"]
    assert tokenizer.decode(ids[:2]) == " \ufffd"


def test_rows_that_only_fill_the_embedding_are_valid_and_empty(byte_level: Path) -> None:
    tokenizer = load(byte_level)

    assert tokenizer.piece(VOCAB_SIZE - 1) == b""
    for outside in (-1, VOCAB_SIZE):
        with pytest.raises(ValueError, match=f"token {outside} is outside the vocabulary of {VOCAB_SIZE}"):
            tokenizer.decode([outside])


def test_a_token_without_a_row_in_the_embedding_is_refused(byte_level: Path) -> None:
    with pytest.raises(CheckpointError, match=r"has 504 tokens, the model's embedding 503 rows.*<tool_call>"):
        Tokenizer(vocabulary_from_directory(byte_level), 503)


def test_generation_ends_at_known_texts_and_at_what_the_checkpoint_names(byte_level: Path) -> None:
    vocabulary = vocabulary_from_directory(byte_level)
    tokenizer = Tokenizer(vocabulary, VOCAB_SIZE, eog_ids=[5])

    assert tokenizer.eog_ids == {tokenizer.eos_id, 5}
    assert tokenizer.is_control(5)
    assert (tokenizer.bos_text, tokenizer.eos_text) == ("<s>", "<|im_end|>")


def test_the_digest_tells_what_tokens_stand_for(byte_level: Path, sentencepiece: Path) -> None:
    tokenizer = load(byte_level)

    assert tokenizer.digest == load(byte_level).digest == tokenizer.enlarged(VOCAB_SIZE + 1).digest
    assert tokenizer.digest != load(sentencepiece).digest
    ended_by_another = Tokenizer(vocabulary_from_directory(byte_level), VOCAB_SIZE, eog_ids=[5])
    assert tokenizer.digest != ended_by_another.digest


def test_a_larger_vocabulary_has_empty_pieces_at_its_end(byte_level: Path) -> None:
    tokenizer = load(byte_level)
    larger = tokenizer.enlarged(VOCAB_SIZE + 2)

    assert larger.decode([VOCAB_SIZE + 1]) == ""
    assert larger.encode("a<tool_call>") == tokenizer.encode("a<tool_call>")
    assert tokenizer.vocab_size == VOCAB_SIZE


def test_an_ordinary_token_that_reads_like_an_end_is_text(tmp_path: Path) -> None:
    encoder = Encoder(models.BPE(vocab={"<": 0, "/s>": 1, "</s>": 2}, merges=[("<", "/s>")]))
    encoder.decoder = decoders.ByteLevel()

    assert load(save(encoder, tmp_path)).eog_ids == frozenset()


def test_the_template_file_comes_before_the_settings(tmp_path: Path) -> None:
    named = [{"name": "default", "template": "D{{ bos_token }}"}, {"name": "tool_use", "template": "T"}]
    save(byte_level_encoder(), tmp_path, bos_token="<s>", chat_template=named)
    from_settings = load(tmp_path).chat_template
    (tmp_path / "chat_template.jinja").write_text("F")
    from_file = load(tmp_path).chat_template

    assert from_settings is not None
    assert from_file is not None
    assert (from_settings.render([]), from_settings.render([], tools=[{}])) == ("D<s>", "T")
    assert (from_file.render([]), from_file.render([], tools=[{}])) == ("F", "T")


def test_without_a_template_there_is_none(byte_level: Path) -> None:
    assert load(byte_level).chat_template is None


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"eos_token": "<none>"}, "eos_token is '<none>'; tokenizer.json has no such token"),
        ({"eos_token": 3}, "eos_token is 3"),
        ({"add_bos_token": True}, "bos_token is missing; add_bos_token is true"),
        ({"add_eos_token": True}, "eos_token is missing; add_eos_token is true"),
        ({"add_bos_token": "yes"}, "add_bos_token is 'yes'"),
        ({"chat_template": 3}, "chat_template is 3"),
        ({"added_tokens_decoder": []}, "added_tokens_decoder is "),
    ],
)
def test_a_contradictory_setting_is_named(tmp_path: Path, settings: dict[str, object], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        load(save(byte_level_encoder(), tmp_path, **settings))


def test_another_kind_of_model_is_refused_by_name(tmp_path: Path) -> None:
    encoder = Encoder(models.WordPiece(vocab={"[UNK]": 0}, unk_token="[UNK]"))
    encoder.decoder = decoders.WordPiece()

    with pytest.raises(CheckpointError, match="WordPiece"):
        load(save(encoder, tmp_path))


def test_a_directory_without_tokenizer_json_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"there is no tokenizer\.json"):
        load(tmp_path)


def test_a_checkpoints_tokenizer_knows_the_ends_of_its_generation_config(tmp_path: Path) -> None:
    make_model("llama", tmp_path)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 7]}))

    tokenizer = load_tokenizer(load_checkpoint(tmp_path))

    assert {2, 7} <= tokenizer.eog_ids
    assert tokenizer.chat_template is not None
    assert tokenizer.chat_template.render([{"role": "user", "content": "hi"}]).startswith("<|im_start|>user\nhi")


def test_a_given_template_replaces_the_checkpoints_own_even_if_that_is_broken(tmp_path: Path) -> None:
    make_model("llama", tmp_path)
    (tmp_path / "chat_template.jinja").write_text("{% if %}")
    checkpoint = load_checkpoint(tmp_path)

    with pytest.raises(TemplateError):
        load_tokenizer(checkpoint)
    template = load_tokenizer(checkpoint, "mine {{ bos_token }}").chat_template
    assert template is not None
    assert template.render([]) == "mine <|im_start|>"
