"""A tiny random model, and any number of adapters for it that each *stamp* every answer: greedy decoding under adapter
number i says token i and nothing else.

The stamp is the bias of a LoRA on the head (`lora_bias`); beside it each adapter has random matrices in the layers, so
that it weighs something and is computed. The directories are valid PEFT, written without PEFT, which takes a second for
each.
"""

import json
from pathlib import Path

import safetensors.torch
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM

MAX_STAMPS = 1000
FIRST_STAMP = 256
"""Token of adapter 0; the bytes are before it."""
VOCAB_SIZE = FIRST_STAMP + MAX_STAMPS
_HIDDEN, _FEED_FORWARD, _LAYERS, _HEADS = 64, 256, 2, 4
_RANK, _STRENGTH = 16, 1e4


def write_model(path: Path) -> Path:
    """Write the model, with a token for each byte and one for each adapter; none ends an answer."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=_HIDDEN,
        intermediate_size=_FEED_FORWARD,
        num_hidden_layers=_LAYERS,
        num_attention_heads=_HEADS,
        num_key_value_heads=2,
        max_position_embeddings=2048,
        initializer_range=0.3,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=None,
    )
    LlamaForCausalLM(config).save_pretrained(path)
    characters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={text: i for i, text in enumerate(characters)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens([AddedToken(f"<{stamp_name(number)}>", normalized=False) for number in range(MAX_STAMPS)])
    tokenizer.save(str(path / "tokenizer.json"))
    (path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))
    return path


def stamp_name(number: int) -> str:
    """The name of an adapter."""
    return f"stamp{number:04}"


def write_adapters(folder: Path, numbers: range, size_factor: int = 1) -> Path:
    """Write adapters into `folder`, each a directory of its own; `size_factor` multiplies their ranks."""
    rank = _RANK * size_factor
    shapes = {
        **{f"model.layers.{i}.self_attn.q_proj": (_HIDDEN, _HIDDEN) for i in range(_LAYERS)},
        **{f"model.layers.{i}.mlp.down_proj": (_HIDDEN, _FEED_FORWARD) for i in range(_LAYERS)},
        "lm_head": (VOCAB_SIZE, _HIDDEN),
    }
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": rank,
        "lora_alpha": rank,
        "lora_bias": True,
        "bias": "none",
        "target_modules": ["q_proj", "down_proj", "lm_head"],
    }
    generator = torch.Generator().manual_seed(numbers.start)
    for number in numbers:
        tensors = {}
        for module, (out_features, in_features) in shapes.items():
            bias = torch.zeros(out_features)
            if module == "lm_head":
                bias[FIRST_STAMP + number] = _STRENGTH
            prefix = f"base_model.model.{module}"
            tensors[f"{prefix}.lora_A.weight"] = 0.02 * torch.randn(rank, in_features, generator=generator)
            tensors[f"{prefix}.lora_B.weight"] = 0.02 * torch.randn(out_features, rank, generator=generator)
            tensors[f"{prefix}.lora_B.bias"] = bias
        directory = folder / stamp_name(number)
        directory.mkdir(parents=True)
        (directory / "adapter_config.json").write_text(json.dumps(config))
        safetensors.torch.save_file(tensors, directory / "adapter_model.safetensors")
    return folder
