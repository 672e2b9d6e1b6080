"""The models that llama.cpp's tests are run with, made here: tiny GGUF files with a SentencePiece vocabulary and a BOS.

`random.gguf` has random weights: whatever it is asked, it goes on with printable text, for tokens that would end its
answer or break a character have no logit to speak of. `storyteller.gguf` and its adapter know five words, and which of
them has the highest logit is decided by the adapter's scale alone: the logit of the word for scale s is 2 s x - s² at
scale x, and of such lines the one for s is highest at x = s.
"""

import string
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt

BOS, EOS = 1, 2
SPACE = "▁"
CONTROL = ("<unk>", "<s>", "</s>")
FILL_IN = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>")
WORDS_BY_SCALE = {0.0: "little", 0.3: "special", 0.7: "far", 1.0: "eye"}
"""What the storyteller says at which scale of its adapter, besides the word that follows `little`."""
FOLLOWER = "bright"
WORDS = (
    *("I", "a", "in", "is", "it", "of", "the", "to", "was", "and"),
    *("quick", "brown", "fox"),
    *WORDS_BY_SCALE.values(),
    FOLLOWER,
)
TEMPLATE = (
    "{% for message in messages %}{{ message.role }}: {{ message.content or '' }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)

_HIDDEN, _HEADS, _KV_HEADS, _FFN, _LAYERS, _CONTEXT = 64, 4, 2, 96, 2, 8192
_HEAD_SIZE = _HIDDEN // _HEADS

Array = npt.NDArray[np.float32]


def vocabulary() -> tuple[list[str], list[gguf.TokenType]]:
    """Return the tokens by id, and their kinds: control, the 256 bytes, characters, words with all that they begin
    with, and the tokens of filling in.
    """
    byte_tokens = [f"<0x{byte:02X}>" for byte in range(256)]
    characters = [SPACE, *string.ascii_letters, *string.digits, *string.punctuation]
    beginnings = dict.fromkeys(SPACE + word[:end] for word in WORDS for end in range(1, len(word) + 1))
    kind = gguf.TokenType
    texts = [*CONTROL, *byte_tokens, *characters, *beginnings, *FILL_IN]
    kinds = [kind.UNKNOWN, kind.CONTROL, kind.CONTROL, *[kind.BYTE] * len(byte_tokens)]
    kinds += [kind.NORMAL] * (len(characters) + len(beginnings)) + [kind.CONTROL] * len(FILL_IN)
    return texts, kinds


def write_random_model(path: Path, seed: int = 0) -> None:
    """Write the model that says anything."""
    random = np.random.default_rng(seed)
    texts, kinds = vocabulary()

    def matrix(rows: int, columns: int, std: float) -> Array:
        return random.normal(0, std, (rows, columns)).astype(np.float32)

    output = matrix(len(texts), _HIDDEN, 1.2 / _HIDDEN**0.5)
    output[[kind != gguf.TokenType.NORMAL for kind in kinds]] = 0
    tensors = {"token_embd.weight": matrix(len(texts), _HIDDEN, 1), "output.weight": output}
    for layer in range(_LAYERS):
        for name, (rows, columns) in _layer_shapes().items():
            tensors[f"blk.{layer}.{name}.weight"] = matrix(rows, columns, columns**-0.5)
    _write_model(path, tensors)


def write_storyteller(path: Path) -> None:
    """Write the model whose words depend on its adapter's scale alone."""
    texts, _ = vocabulary()
    embedding = np.zeros((len(texts), _HIDDEN), np.float32)
    embedding[:, 0] = 1
    output = np.zeros_like(embedding)
    output[:, 0] = -100
    for scale, word in WORDS_BY_SCALE.items():
        output[_id(texts, word), 0] = -(scale**2)
    embedding[_id(texts, WORDS_BY_SCALE[0.0]), 1] = 1
    output[_id(texts, FOLLOWER), :2] = -0.01, 0.02
    tensors = {"token_embd.weight": embedding, "output.weight": output}
    for layer in range(_LAYERS):
        for name, shape in _layer_shapes().items():
            tensors[f"blk.{layer}.{name}.weight"] = np.zeros(shape, np.float32)
    _write_model(path, tensors)


def write_storytellers_adapter(path: Path) -> None:
    """Write the adapter that the storyteller listens to."""
    texts, _ = vocabulary()
    a, b = np.zeros((1, _HIDDEN), np.float32), np.zeros((len(texts), 1), np.float32)
    a[0, 0] = 1
    for scale, word in WORDS_BY_SCALE.items():
        b[_id(texts, word), 0] = 2 * scale
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_type("adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", 1.0)
    _finish(writer, {"output.weight.lora_a": a, "output.weight.lora_b": b})


def _id(texts: list[str], word: str) -> int:
    return texts.index(SPACE + word)


def _layer_shapes() -> dict[str, tuple[int, int]]:
    kv = _KV_HEADS * _HEAD_SIZE
    return {
        "attn_q": (_HIDDEN, _HIDDEN),
        "attn_k": (kv, _HIDDEN),
        "attn_v": (kv, _HIDDEN),
        "attn_output": (_HIDDEN, _HIDDEN),
        "ffn_gate": (_FFN, _HIDDEN),
        "ffn_up": (_FFN, _HIDDEN),
        "ffn_down": (_HIDDEN, _FFN),
    }


def _write_model(path: Path, tensors: dict[str, Array]) -> None:
    texts, kinds = vocabulary()
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    writer.add_vocab_size(len(texts))
    writer.add_context_length(_CONTEXT)
    writer.add_embedding_length(_HIDDEN)
    writer.add_block_count(_LAYERS)
    writer.add_feed_forward_length(_FFN)
    writer.add_head_count(_HEADS)
    writer.add_head_count_kv(_KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_rope_dimension_count(_HEAD_SIZE)
    writer.add_tokenizer_model("llama")
    writer.add_token_list(texts)
    writer.add_token_types(kinds)
    writer.add_token_scores([-float(token_id) for token_id in range(len(texts))])
    writer.add_bos_token_id(BOS)
    writer.add_eos_token_id(EOS)
    writer.add_unk_token_id(0)
    writer.add_add_bos_token(True)
    for role, text in zip(("pre", "suf", "mid"), FILL_IN, strict=True):
        writer.add_uint32(f"tokenizer.ggml.fim_{role}_token_id", texts.index(text))
    writer.add_chat_template(TEMPLATE)
    norms = [f"blk.{layer}.{norm}.weight" for layer in range(_LAYERS) for norm in ("attn_norm", "ffn_norm")]
    _finish(writer, tensors | {name: np.ones(_HIDDEN, np.float32) for name in [*norms, "output_norm.weight"]})


def _finish(writer: gguf.GGUFWriter, tensors: dict[str, Array]) -> None:
    for name, values in tensors.items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
