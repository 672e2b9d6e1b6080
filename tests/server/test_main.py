"""The command `cohort`."""

import pytest

from server.__main__ import main, read_command, read_serve_settings
from server.version import VERSION


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(["--version"])
    assert (exit_.value.code, capsys.readouterr().out) == (0, f"cohort {VERSION}\n")


@pytest.mark.parametrize("flag", ["-m", "--lora-scaled", "--kv-cache-bytes", "COHORT_CTX_SIZE"])
def test_help_tells_the_flags(capsys: pytest.CaptureFixture[str], flag: str) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(["serve", "--help"])
    assert exit_.value.code == 0
    assert flag in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments", [[], ["train"], ["serve", "-m", "x", "--wrong"], ["simulate", "--wrong"], ["--wrong"]]
)
def test_a_wrong_command_line_has_code_2(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(arguments)
    assert exit_.value.code == 2


def test_the_arguments_after_serve_are_settings() -> None:
    command, arguments = read_command(["serve", "-m", "x", "--port", "1"])
    assert (command, read_serve_settings(arguments).port) == ("serve", 1)
