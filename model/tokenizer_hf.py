"""Build a vocabulary from a Hugging Face directory: tokenizer.json, and what its companions add.

The tokenizers library reads tokenizer.json; this file reads what the library leaves to transformers: which tokens begin
and end a text, whether BOS is added, tokens added later, chat templates. Source: the files that transformers'
`save_pretrained` writes.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

from tokenizers import AddedToken, Tokenizer

from model.config import CheckpointError
from model.end_of_generation import end_of_generation_ids
from model.fields import Fields, read_json_object
from model.vocabulary import Vocabulary, byte_level_piece, sentencepiece_piece

_ROLES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


def vocabulary_from_directory(directory: Path) -> Vocabulary:
    """Return the vocabulary of a checkpoint directory.

    Raises CheckpointError naming the file and field, where one is missing or the tokenizer is of another kind than BPE.
    """
    path = directory / "tokenizer.json"
    if not path.is_file():
        raise CheckpointError(f"{directory}: there is no tokenizer.json; transformers' save_pretrained writes one")
    tokenizer = read_json_object(path)
    settings = Fields(_settings(directory), str(directory / "tokenizer_config.json"))
    encoder = Tokenizer.from_str(json.dumps(tokenizer))
    # Both would change a prompt without a word.
    encoder.no_truncation()
    encoder.no_padding()
    _add_later_tokens(encoder, settings)
    added = encoder.get_added_tokens_decoder()
    special = {role: text for role in _ROLES if (text := _token_text(settings, role)) is not None}
    bos_id, eos_id = (_id_of(encoder, settings, special, role) for role in ("bos_token", "eos_token"))
    adds_bos = settings.flag("add_bos_token", _writes_bos(encoder, bos_id))
    if adds_bos and bos_id is None:
        raise settings.error("bos_token", "add_bos_token is true, so it is needed")
    chat_template, tool_use_template = _chat_templates(directory, settings)
    return Vocabulary(
        encoder=encoder,
        pieces=_pieces(encoder, added, tokenizer, path),
        control_ids=frozenset(token_id for token_id, token in added.items() if token.special),
        bos_id=bos_id,
        eos_id=eos_id,
        adds_bos=adds_bos,
        eog_ids=end_of_generation_ids({token.content: i for i, token in added.items()}, [eos_id]),
        special_tokens=special,
        chat_template=chat_template,
        tool_use_template=tool_use_template,
    )


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


def _writes_bos(encoder: Tokenizer, bos_id: int | None) -> bool:
    """Whether tokenizer.json's own post-processor begins a text with BOS."""
    return bos_id is not None and encoder.encode("").ids[:1] == [bos_id]


def _add_later_tokens(encoder: Tokenizer, settings: Fields) -> None:
    """Add the tokens that only tokenizer_config.json has: fine-tuning added them. Their ids must come out as said."""
    name = "added_tokens_decoder"
    later = settings.get(name)
    if later is None:
        return
    if not isinstance(later, dict) or not all(key.isdecimal() and isinstance(later[key], dict) for key in later):
        raise settings.error(name, "an object from token ids to tokens is needed")
    known = encoder.get_added_tokens_decoder()
    for token_id in sorted(map(int, later)):
        if token_id in known:
            continue
        token = Fields(later[str(token_id)], f"tokenizer_config.json: {name} {token_id}")
        content = token.text("content")
        flags = {flag: token.flag(flag, False) for flag in ("single_word", "lstrip", "rstrip", "normalized", "special")}
        encoder.add_tokens([AddedToken(content, **flags)])
        if encoder.token_to_id(content) != token_id:
            raise settings.error(
                name, f"token {token_id} {content!r} would not get its id by being added to tokenizer.json"
            )


def _pieces(
    encoder: Tokenizer, added: Mapping[int, AddedToken], tokenizer: Mapping[str, object], path: Path
) -> tuple[bytes, ...]:
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
    pieces: dict[int, bytes] = {i: spelling(text) for text, i in encoder.get_vocab(with_added_tokens=False).items()}
    pieces.update((i, token.content.encode()) for i, token in added.items())
    return tuple(pieces.get(i, b"") for i in range(max(pieces) + 1))


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
