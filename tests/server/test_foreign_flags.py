"""Flags of llama-server's that are no settings here: taken where they ask for what is so anyway, else refused."""

import argparse

import pytest

from server.foreign_flags import IDLE_FLAGS, REFUSED_FLAGS, add_foreign_flags

IDLE_ARGUMENTS = (
    ("--jinja",),
    ("--no-jinja",),
    ("--offline",),
    ("--cont-batching",),
    ("-fa", "on"),
    ("--flash-attn", "auto"),
    ("--swa-full",),
    ("--cache-ram", "-1"),
    ("-cram", "8192"),
    ("--no-cache-idle-slots",),
    ("--no-webui",),
)


def parse(*arguments: str) -> argparse.Namespace:
    """Parse a command line of such flags alone."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    add_foreign_flags(parser)
    return parser.parse_args(arguments)


@pytest.mark.parametrize("arguments", IDLE_ARGUMENTS)
def test_a_flag_that_changes_nothing_leaves_nothing_behind(arguments: tuple[str, ...]) -> None:
    assert vars(parse(*arguments)) == {}


def test_every_flag_that_changes_nothing_is_tried_here_and_says_why() -> None:
    tried = {arguments[0] for arguments in IDLE_ARGUMENTS}
    assert all(set(idle.names) & tried and idle.reason for idle in IDLE_FLAGS)


@pytest.mark.parametrize("arguments", [("-fa", "maybe"), ("--cache-ram", "-2"), ("--cache-ram", "1.5"), ("-fa",)])
def test_a_wrong_value_is_refused_by_the_flag(arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as refused:
        parse(*arguments)
    assert refused.value.code == 2
    assert arguments[0] in capsys.readouterr().err


@pytest.mark.parametrize("name", [name for names in REFUSED_FLAGS for name in names])
def test_what_cannot_be_honoured_is_refused_with_the_reason(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    reason = next(reason for names, reason in REFUSED_FLAGS.items() if name in names)
    for arguments in ([name], [name, "f16"]):
        with pytest.raises(SystemExit) as refused:
            parse(*arguments)
        assert refused.value.code == 2
        assert f"{name} is not supported: {reason}" in capsys.readouterr().err
