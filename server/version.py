"""Which version this is: what the installed package says, or that it runs from a checkout."""

from importlib.metadata import PackageNotFoundError, version

try:
    VERSION = version("cohort-server")
except PackageNotFoundError:
    VERSION = "0+checkout"

BUILD = f"b{VERSION}-cohort"
"""Named in answers. llama-server's clients expect a leading b."""
