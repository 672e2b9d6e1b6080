"""Build a vocabulary from a Hugging Face directory: tokenizer.json, and what its companions add.

The tokenizers library reads tokenizer.json; this file reads what the library leaves to transformers: which tokens begin
and end a text, whether BOS is added, tokens added later, chat templates. Source: the files that transformers'
`save_pretrained` writes.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

from tokenizers import AddedToken, Tokenizer

from model.checkpoint.config import CheckpointError
from model.checkpoint.fields import Fields, read_json_object
from model.tokens.end_of_generation import end_of_generation_ids
from model.tokens.infill import fim_tokens
from model.tokens.vocabulary import Vocabulary, byte_level_piece, sentencepiece_piece

_ENCODER_FILE = "tokenizer.json"
_MAX_TOKENS = 2**22
"""Ids are positions in a list, which a file must not make as long as it likes."""
_ROLES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


def vocabulary_from_directory(directory: Path, base: Vocabulary | None = None) -> Vocabulary:
    """Return the vocabulary of a directory.

    `base` is what the directory was saved beside, and what it changes where it has no tokenizer.json of its own: tokens
    added later, roles and chat templates. Raises CheckpointError naming the file and field, where one is missing or the
    tokenizer is of another kind than BPE.
    """
    settings = Fields(_settings(directory), str(directory / "tokenizer_config.json"))
    own = {role: text for role in _ROLES if (text := _token_text(settings, role)) is not None}
    later = _later_tokens(directory, settings, own)
    borrowed = None if (directory / _ENCODER_FILE).is_file() else base
    encoder, spelled = _read_encoder(directory) if borrowed is None else _borrow_encoder(borrowed, later)
    _add_later_tokens(encoder, settings, later)
    added = encoder.get_added_tokens_decoder()
    control_ids = frozenset(token_id for token_id, token in added.items() if token.special)
    special = own if base is None else {**base.special_tokens, **own}
    bos_id, eos_id = (_id_of(encoder, settings, special, role) for role in ("bos_token", "eos_token"))
    writes = _writes(encoder, bos_id, eos_id) if borrowed is None else (borrowed.adds_bos, borrowed.adds_eos)
    adds_bos, adds_eos = settings.flag("add_bos_token", writes[0]), settings.flag("add_eos_token", writes[1])
    for role, adds, token_id in (("bos", adds_bos, bos_id), ("eos", adds_eos, eos_id)):
        if adds and token_id is None:
            raise settings.error(f"{role}_token", f"add_{role}_token is true, so it is needed")
    chat_template, tool_use_template = _chat_templates(directory, settings)
    return Vocabulary(
        encoder=encoder,
        pieces=_with_added(spelled, added, directory),
        control_ids=control_ids,
        bos_id=bos_id,
        eos_id=eos_id,
        adds_bos=adds_bos,
        adds_eos=adds_eos,
        eog_ids=end_of_generation_ids({token.content: i for i, token in added.items()}, control_ids, [eos_id]),
        special_tokens=special,
        chat_template=chat_template,
        tool_use_template=tool_use_template,
        fim=fim_tokens(encoder.get_vocab(with_added_tokens=True), {}),
    )


def _read_encoder(directory: Path) -> tuple[Tokenizer, dict[int, bytes]]:
    """Return the encoder of tokenizer.json, and the pieces of the tokens that are not added ones."""
    path = directory / _ENCODER_FILE
    if not path.is_file():
        raise CheckpointError(f"{directory}: there is no {_ENCODER_FILE}; transformers' save_pretrained writes one")
    tokenizer = read_json_object(path)
    try:
        encoder = Tokenizer.from_str(json.dumps(tokenizer))
        # Both would change a prompt without a word.
        encoder.no_truncation()
        encoder.no_padding()
        encoder.encode("a b")
    except BaseException as error:  # the library raises Exception itself, and no Exception where it panics
        if isinstance(error, Exception) or type(error).__name__ == "PanicException":
            raise CheckpointError(f"{path}: not a tokenizer that can be used: {error}") from error
        raise
    return encoder, _spell(encoder, tokenizer, path)


def _borrow_encoder(base: Vocabulary, later: Mapping[int, AddedToken]) -> tuple[Tokenizer, dict[int, bytes]]:
    """Return a copy of `base`'s encoder and its pieces. Tokens that `later` puts on ids that only fill the embedding
    have taken the place of what had them."""
    texts = {i: later[i].content for i in later if i < len(base.pieces) and not base.pieces[i]}
    copy = json.loads(base.encoder.to_str())
    vocabulary = {text: i for text, i in copy["model"]["vocab"].items() if i not in texts}
    copy["model"]["vocab"] = vocabulary | {text: i for i, text in texts.items()}
    return Tokenizer.from_str(json.dumps(copy)), dict(enumerate(base.pieces))


def _settings(directory: Path) -> dict[str, object]:
    """Return tokenizer_config.json over special_tokens_map.json, its older companion."""
    settings: dict[str, object] = {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        if (directory / name).is_file():
            settings.update(read_json_object(directory / name))
    return settings


def _token_text(settings: Fields, role: str) -> str | None:
    """A token is written as its text, or as an object with its `content`."""
    value = settings.get(role)
    text = value.get("content") if isinstance(value, dict) else value
    if text is not None and not isinstance(text, str):
        raise settings.error(role, "the token's text, or an object with its content, is needed")
    return text


def _id_of(encoder: Tokenizer, settings: Fields, special: Mapping[str, str], role: str) -> int | None:
    if role not in special:
        return None
    token_id: int | None = encoder.token_to_id(special[role])
    if token_id is None:
        raise settings.error(role, "tokenizer.json has no such token")
    return token_id


def _writes(encoder: Tokenizer, bos_id: int | None, eos_id: int | None) -> tuple[bool, bool]:
    """Whether tokenizer.json's own post-processor begins a text with BOS, and ends it with EOS."""
    ids: list[int] = encoder.encode("").ids
    writes_bos = ids[:1] == [bos_id]
    return writes_bos, ids[writes_bos:][-1:] == [eos_id]


def _later_tokens(directory: Path, settings: Fields, special: Mapping[str, str]) -> dict[int, AddedToken]:
    """Return the tokens that fine-tuning added, by id: those of tokenizer_config.json, and of added_tokens.json, which
    older versions wrote."""
    later = {} if settings.get("added_tokens_decoder") is None else settings.get("added_tokens_decoder")
    if not isinstance(later, dict) or not all(key.isdecimal() and isinstance(later[key], dict) for key in later):
        raise settings.error("added_tokens_decoder", "an object from token ids to tokens is needed")
    tokens = {}
    for token_id in sorted(map(int, later)):
        token = Fields(later[str(token_id)], f"tokenizer_config.json: added_tokens_decoder {token_id}")
        flags = {flag: token.flag(flag, False) for flag in ("single_word", "lstrip", "rstrip", "normalized", "special")}
        tokens[token_id] = AddedToken(token.text("content"), **flags)
    path = directory / "added_tokens.json"
    older = read_json_object(path) if path.is_file() else {}
    for text in older:
        token_id = Fields(older, str(path)).integer(text, minimum=0)
        tokens.setdefault(token_id, AddedToken(text, normalized=False, special=text in special.values()))
    return tokens


def _add_later_tokens(encoder: Tokenizer, settings: Fields, later: Mapping[int, AddedToken]) -> None:
    """Add those that the encoder does not have. Their ids must come out as said."""
    known = encoder.get_added_tokens_decoder()
    for token_id, token in sorted(later.items()):
        content = token.content
        if token_id not in known:
            encoder.add_tokens([token])
        if encoder.token_to_id(content) != token_id:
            raise settings.error(
                "added_tokens_decoder",
                f"token {token_id} {content!r} would not get its id by being added to the tokenizer",
            )


def _spell(encoder: Tokenizer, tokenizer: Mapping[str, object], path: Path) -> dict[int, bytes]:
    model = tokenizer.get("model")
    kind = model.get("type", "BPE") if isinstance(model, dict) else None
    decoders = set(_decoder_types(tokenizer.get("decoder")))
    if "ByteLevel" in decoders:
        spelling = byte_level_piece
    elif decoders & {"ByteFallback", "Metaspace", "Replace"}:
        spelling = sentencepiece_piece
    else:
        kind = None
    if kind != "BPE":
        raise CheckpointError(
            f"{path}: model {kind} with decoders {sorted(decoders)}; byte-level and SentencePiece BPE are supported"
        )
    return {i: spelling(text) for text, i in encoder.get_vocab(with_added_tokens=False).items()}


def _with_added(pieces: dict[int, bytes], added: Mapping[int, AddedToken], path: Path) -> tuple[bytes, ...]:
    pieces = pieces | {i: token.content.encode() for i, token in added.items()}
    if max(pieces, default=0) >= _MAX_TOKENS:
        raise CheckpointError(
            f"{path}: token id {max(pieces)} is beyond any vocabulary; at most {_MAX_TOKENS - 1} is read"
        )
    return tuple(pieces.get(i, b"") for i in range(max(pieces, default=-1) + 1))


def _decoder_types(decoder: object) -> Iterator[str]:
    if isinstance(decoder, dict):
        yield str(decoder.get("type"))
        for part in decoder.get("decoders", []):
            yield from _decoder_types(part)


def _chat_templates(directory: Path, settings: Fields) -> tuple[str | None, str | None]:
    """Return the template, and the one for requests with tools, from the files if there are any, else the settings."""
    value = settings.get("chat_template")
    entries = value if isinstance(value, list) else [] if value is None else [{"name": "default", "template": value}]
    templates: dict[object, str] = {}
    for entry in entries:
        template = entry.get("template") if isinstance(entry, dict) else None
        if not isinstance(template, str):
            raise settings.error("chat_template", "a string, or an array of objects with name and template, is needed")
        templates[entry.get("name")] = template
    files = {"default": "chat_template.jinja", "tool_use": "additional_chat_templates/tool_use.jinja"}
    for name, file in files.items():
        if (directory / file).is_file():
            templates[name] = (directory / file).read_text(encoding="utf-8")
    return templates.get("default"), templates.get("tool_use")
