"""The table of PEFT's features in docs/adapters.md, from the list that the matrix test goes by.

`python -m tests.model.adapter_table --rewrite` puts it into the page; a test holds the page against it.
"""

import argparse
from pathlib import Path

from tests.model.peft_features import HONOURED
from tests.model.peft_refusals import REFUSED

PAGE = Path(__file__).parents[2] / "docs" / "adapters.md"
BEGIN, END = "<!-- table: python -m tests.model.adapter_table --rewrite -->\n", "<!-- end of table -->\n"


def table() -> str:
    """Return the table in Markdown: what is honoured, then what is refused and what the error says."""
    lines = ["| field | what | | |", "|---|---|---|---|"]
    lines += [f"| {_code(each.name)} | {each.what} | honoured | {each.note} |" for each in HONOURED]
    lines += [f"| {_code(each.name)} | {each.what} | refused | “… {each.message} …” |" for each in REFUSED]
    return "".join(f"{line}\n" for line in lines)


def with_table(page: str) -> str:
    """Return the page with the table as it should be."""
    head, begin, rest = page.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{PAGE} has no place for the table: the lines {BEGIN!r} and {END!r}")
    return head + begin + "\n" + table() + "\n" + end + tail


def _code(name: str) -> str:
    return name if name.startswith("(") else ", ".join(f"`{part}`" for part in name.split(", "))


def main() -> None:
    """Rewrite the page, or say whether it is up to date."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rewrite", action="store_true", help="put the table into docs/adapters.md")
    page = PAGE.read_text(encoding="utf-8")
    if parser.parse_args().rewrite:
        PAGE.write_text(with_table(page), encoding="utf-8")
    elif with_table(page) != page:
        raise SystemExit("docs/adapters.md is not up to date: run python -m tests.model.adapter_table --rewrite")


if __name__ == "__main__":
    main()
