"""docs/adapters.md says what the tests show."""

from tests.model.adapter_table import PAGE, with_table


def test_the_page_is_up_to_date() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert with_table(page) == page, "run python -m tests.model.adapter_table --rewrite"


def test_a_table_that_is_out_of_date_shows() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert with_table(page.replace("honoured", "ignored", 5)) != page.replace("honoured", "ignored", 5)
