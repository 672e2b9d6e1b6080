"""Train the two demo adapters with PEFT: `pirate` answers in pirate talk, `emoji` ends its sentences with emojis.

    pip install -e '.[dev]'
    python docs/demo/train.py --model SmolLM2-135M-Instruct.Q4_1.gguf

They learn from the few dozen lines of pirate.jsonl, emoji.jsonl and both.jsonl beside this script, in some minutes on
two CPU cores. The steps take turns: one adapter alone, the other alone, both at one half, so that a mix shows both.
"""

import argparse
import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from peft.tuners.lora import LoraLayer
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

Example: TypeAlias = tuple[list[int], list[int]]

BASE_MODEL = "HuggingFaceTB/SmolLM2-135M-Instruct"
HERE = Path(__file__).parent
ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
MLP = ["gate_proj", "up_proj", "down_proj"]
CONFIGS = {
    "pirate": LoraConfig(r=3, lora_alpha=6, target_modules=ATTENTION + MLP, task_type="CAUSAL_LM"),
    "emoji": LoraConfig(r=8, lora_alpha=16, target_modules=ATTENTION, task_type="CAUSAL_LM"),
}
LISTS: Mapping[str, Mapping[str, float]] = {
    "pirate": {"pirate": 1.0},
    "emoji": {"emoji": 1.0},
    "both": {"pirate": 0.5, "emoji": 0.5},
}
"""The adapter list under which the lines of each file are learnt."""
STEPS = 180
BATCH = 4
LEARNING_RATE = 2e-3
IGNORED = -100


def main() -> None:
    """Train both adapters and write each as a PEFT directory."""
    parser = argparse.ArgumentParser(description="Train the demo adapters.")
    parser.add_argument("--model", type=Path, required=True, help="SmolLM2-135M-Instruct as a GGUF file")
    parser.add_argument("--out", type=Path, default=HERE, help="where the adapter directories go")
    options = parser.parse_args()
    directory, name = options.model.parent, options.model.name
    torch.manual_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(directory, gguf_file=name)
    base = AutoModelForCausalLM.from_pretrained(directory, gguf_file=name, dtype=torch.float32)
    model = get_peft_model(base, CONFIGS["pirate"], adapter_name="pirate")
    model.add_adapter("emoji", CONFIGS["emoji"])
    train(model, {name: read_examples(tokenizer, HERE / f"{name}.jsonl") for name in LISTS})
    save(model, options.out)


def read_examples(tokenizer: Any, path: Path) -> list[Example]:
    """Return the tokens and labels of a file's lines; only the answers are learnt."""
    examples = []
    for line in map(json.loads, path.read_text(encoding="utf-8").splitlines()):
        question = tokenizer.apply_chat_template(
            [{"role": "user", "content": line["prompt"]}], add_generation_prompt=True, tokenize=False
        )
        asked = tokenizer(question, add_special_tokens=False)["input_ids"]
        answered = tokenizer(line["answer"] + tokenizer.eos_token, add_special_tokens=False)["input_ids"]
        examples.append((asked + answered, [IGNORED] * len(asked) + answered))
    return examples


def train(model: PeftModel, examples: Mapping[str, Sequence[Example]]) -> None:
    """Fit the adapters, printing the loss now and then."""
    optimizer = torch.optim.AdamW([p for n, p in model.named_parameters() if "lora_" in n], lr=LEARNING_RATE)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=LEARNING_RATE, total_steps=STEPS, pct_start=0.1)
    draw = random.Random(0)
    for step in range(STEPS):
        name = list(LISTS)[step % len(LISTS)]
        set_list(model, LISTS[name])
        tokens, labels = collate(draw.sample(examples[name], BATCH))
        loss = model(input_ids=tokens, labels=labels).loss
        loss.backward()
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        if step >= STEPS - len(LISTS) or step % 10 == 0:
            print(f"step {step + 1}/{STEPS} {name}: loss {loss.item():.3f}", flush=True)


def set_list(model: PeftModel, scales: Mapping[str, float]) -> None:
    """Apply the named adapters at their scales, and no other; only they get gradients."""
    model.base_model.set_adapter(list(scales))
    for module in model.modules():
        if isinstance(module, LoraLayer):
            for name, scale in scales.items():
                module.set_scale(name, scale)


def collate(examples: Sequence[Example]) -> tuple[torch.Tensor, torch.Tensor]:
    """Pad examples on the right to one length: after all that is learnt, where nothing sees it."""
    length = max(len(tokens) for tokens, _ in examples)
    tokens = [tokens + [0] * (length - len(tokens)) for tokens, _ in examples]
    labels = [labels + [IGNORED] * (length - len(labels)) for _, labels in examples]
    return torch.tensor(tokens), torch.tensor(labels)


def save(model: PeftModel, directory: Path) -> None:
    """Write each adapter as PEFT does, with float16 weights and without the model card."""
    for config in model.peft_config.values():
        config.base_model_name_or_path = BASE_MODEL
    model.save_pretrained(directory, save_embedding_layers=False)
    (directory / "README.md").unlink(missing_ok=True)
    for name in CONFIGS:
        path = directory / name / "adapter_model.safetensors"
        save_file({key: tensor.half() for key, tensor in load_file(path).items()}, path, metadata={"format": "pt"})


if __name__ == "__main__":
    main()
