"""Print what the demo adapters do, as Markdown: the base model, each adapter alone, and both at one half.

    python docs/demo/compare.py --model SmolLM2-135M-Instruct.Q4_1.gguf

Greedy, in float32, computed by transformers and PEFT: README.md beside this script holds the output.
"""

import argparse
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from train import HERE, LISTS, set_list
from transformers import AutoModelForCausalLM, AutoTokenizer

PROMPTS = (
    "What is the capital of Italy?",
    "How do I bake bread?",
    "What is the sun made of?",
    "Write one sentence about the sea.",
    "Hi there, how are you?",
)
MAX_TOKENS = 60


def main() -> None:
    """Answer every prompt under every list."""
    parser = argparse.ArgumentParser(description="Compare the demo adapters.")
    parser.add_argument("--model", type=Path, required=True, help="SmolLM2-135M-Instruct as a GGUF file")
    parser.add_argument("--adapters", type=Path, default=HERE, help="where the adapter directories are")
    parser.add_argument("prompts", nargs="*", default=PROMPTS)
    options = parser.parse_args()
    directory, name = options.model.parent, options.model.name
    tokenizer = AutoTokenizer.from_pretrained(directory, gguf_file=name)
    base = AutoModelForCausalLM.from_pretrained(directory, gguf_file=name, dtype=torch.float32)
    model = PeftModel.from_pretrained(base, options.adapters / "pirate", adapter_name="pirate")
    model.load_adapter(options.adapters / "emoji", adapter_name="emoji")
    for prompt in options.prompts:
        print(f"\n**{prompt}**\n\n| list | answer |\n|---|---|")
        for label, scales in {"base": {"pirate": 0.0}, **LISTS}.items():
            set_list(model, scales)
            print(f"| {label} | {answer(model, tokenizer, prompt)} |", flush=True)


def answer(model: PeftModel, tokenizer: Any, prompt: str) -> str:
    """Return the greedy answer on one line, with … where it is cut off."""
    question = tokenizer.apply_chat_template(
        [{"role": "user", "content": prompt}], add_generation_prompt=True, tokenize=False
    )
    inputs = tokenizer(question, add_special_tokens=False, return_tensors="pt")
    with torch.no_grad():
        [output] = model.generate(
            **inputs,
            max_new_tokens=MAX_TOKENS,
            do_sample=False,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.eos_token_id,
        )
    answered = output[inputs["input_ids"].shape[1] :]
    text: str = tokenizer.decode(answered, skip_special_tokens=True)
    ended = answered[-1] == tokenizer.eos_token_id
    return text.replace("\n", "<br>") + ("" if ended else " …")


if __name__ == "__main__":
    main()
