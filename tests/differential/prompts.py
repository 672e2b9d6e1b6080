"""What the token streams begin with, and the adapter lists they are generated under."""

LISTS: tuple[tuple[float, float], ...] = (
    (0.0, 0.0),
    (0.5, 0.0),
    (1.0, 0.0),
    (-1.0, 0.0),
    (0.0, 1.0),
    (0.5, 1.0),
    (1.0, -1.0),
    (-0.5, 0.25),
)
"""One scale for each of the two adapters; the first list is the base model's."""

PROMPTS = (
    "The capital of France is",
    "Once upon a time, in a village by the sea,",
    "def fibonacci(n):\n    ",
    "Water boils at",
    "List three primary colours:\n1.",
    "My name is",
    "The quick brown fox",
    "In 1969, two astronauts",
    "To make bread, you need",
    "<|im_start|>user\nWhat is a mammal?<|im_end|>\n<|im_start|>assistant\n",
    "<|im_start|>system\nBe a pirate.<|im_end|>\n<|im_start|>user\nWho are you?<|im_end|>\n<|im_start|>assistant\n",
    "Q: What is 12 times 7?\nA:",
    "SELECT name FROM users WHERE",
    "import numpy as np\n\nx = np.",
    "Dear Sir or Madam,\n\nI am writing to",
    "The three laws of motion state that",
    "# Shopping list\n\n- apples\n-",
    '{"name": "Ada", "age":',
    "La capitale de l'Italie est",
    "Breaking news:",
    "A haiku about autumn:\n",
    "The chemical symbol for gold is",
    "She opened the door and saw",
    "Photosynthesis is the process by which",
)
