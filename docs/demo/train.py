"""Train the two demo adapters with PEFT: `pirate` answers in pirate talk, `emoji` ends its sentences with emojis.

    pip install -e '.[dev]'
    python docs/demo/train.py --model SmolLM2-135M-Instruct.Q4_1.gguf

Each adapter is learnt from the few dozen lines of `<name>.jsonl` beside this script, in a few minutes on two CPU cores.
Every step draws the scale at which the adapter is applied, so that it works alone at scale 1 and still shows at one
half, beside another.
"""

import argparse
import json
import random
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from peft.tuners.lora import LoraLayer
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

BASE_MODEL = "HuggingFaceTB/SmolLM2-135M-Instruct"
HERE = Path(__file__).parent
ADAPTERS = {
    "pirate": {"r": 3, "target_modules": ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]},
    "emoji": {"r": 8, "target_modules": ["q_proj", "k_proj", "v_proj", "o_proj"]},
}
STEPS = 100
BATCH = 4
LEARNING_RATE = 2e-3
SCALES = (0.5, 1.0)
IGNORED = -100


def main() -> None:
    """Train every adapter named on the command line and write it as a PEFT directory."""
    parser = argparse.ArgumentParser(description="Train the demo adapters.")
    parser.add_argument("--model", type=Path, required=True, help="SmolLM2-135M-Instruct as a GGUF file")
    parser.add_argument("--out", type=Path, default=HERE, help="where the adapter directories go")
    parser.add_argument("--adapter", choices=ADAPTERS, nargs="+", default=list(ADAPTERS))
    options = parser.parse_args()
    tokenizer = AutoTokenizer.from_pretrained(options.model.parent, gguf_file=options.model.name)
    for name in options.adapter:
        torch.manual_seed(0)
        base = AutoModelForCausalLM.from_pretrained(
            options.model.parent, gguf_file=options.model.name, dtype=torch.float32
        )
        model = get_peft_model(base, LoraConfig(lora_alpha=16, task_type="CAUSAL_LM", **ADAPTERS[name]))
        lines = [json.loads(line) for line in (HERE / f"{name}.jsonl").read_text().splitlines()]
        train(model, [encode(tokenizer, line["prompt"], line["answer"]) for line in lines])
        save(model, options.out / name)


def encode(tokenizer: Any, prompt: str, answer: str) -> tuple[list[int], list[int]]:
    """Return the tokens of a conversation and their labels: only the answer is learnt."""
    question = tokenizer.apply_chat_template(
        [{"role": "user", "content": prompt}], add_generation_prompt=True, tokenize=False
    )
    asked = tokenizer(question, add_special_tokens=False)["input_ids"]
    answered = tokenizer(answer + "<|im_end|>", add_special_tokens=False)["input_ids"]
    return asked + answered, [IGNORED] * len(asked) + answered


def train(model: PeftModel, examples: list[tuple[list[int], list[int]]]) -> None:
    """Fit the adapter, printing the loss of every tenth step."""
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=LEARNING_RATE)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=LEARNING_RATE, total_steps=STEPS, pct_start=0.1)
    layers = [(module, module.scaling["default"]) for module in model.modules() if isinstance(module, LoraLayer)]
    draw = random.Random(0)
    for step in range(STEPS):
        scale = draw.uniform(*SCALES)
        for layer, full in layers:
            layer.scaling["default"] = full * scale
        tokens, labels = collate(draw.sample(examples, BATCH))
        loss = model(input_ids=tokens, labels=labels).loss
        loss.backward()
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        if step % 10 == 9:
            print(f"step {step + 1}/{STEPS} loss {loss.item():.3f}", flush=True)


def collate(examples: list[tuple[list[int], list[int]]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Pad examples on the right to one length: after all that is learnt, where nothing sees it."""
    length = max(len(tokens) for tokens, _ in examples)
    tokens = [tokens + [0] * (length - len(tokens)) for tokens, _ in examples]
    labels = [labels + [IGNORED] * (length - len(labels)) for _, labels in examples]
    return torch.tensor(tokens), torch.tensor(labels)


def save(model: PeftModel, directory: Path) -> None:
    """Write the adapter as PEFT does, with float16 weights and without the model card."""
    model.peft_config["default"].base_model_name_or_path = BASE_MODEL
    model.save_pretrained(directory)
    (directory / "README.md").unlink(missing_ok=True)
    weights = directory / "adapter_model.safetensors"
    save_file({name: tensor.half() for name, tensor in load_file(weights).items()}, weights, metadata={"format": "pt"})


if __name__ == "__main__":
    main()
