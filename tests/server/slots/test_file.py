"""Files of saved slots, without a server: round trips, and what damaged and hostile ones come to."""

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from server.slots.file import SavedAdapter, SlotFileError, SlotHeader, SlotReader, SlotWriter

BLOCK_BYTES = 24
HEADER = SlotHeader(
    origin={"model": "abc", "dtype": "float32"},
    adapters=(SavedAdapter("digest of tone", 0.5, "tone"), SavedAdapter("digest of facts", -1.0, "facts")),
    activations=((5, 1),),
    tokens=tuple(range(48)),
    block_bytes=BLOCK_BYTES,
)
BLOCKS = [bytes([number]) * BLOCK_BYTES for number in range(3)]


def write(path: Path, num_blocks: int = 3) -> bytes:
    """Write a file of so many blocks; return what is in it."""
    writer = SlotWriter(path, HEADER)
    writer.append(b"".join(BLOCKS[:num_blocks]))
    assert writer.finish() == path.stat().st_size
    writer.close()
    return path.read_bytes()


def read(path: Path, max_tokens: int = 64) -> tuple[SlotHeader, bytes]:
    """Read a file block by block."""
    reader = SlotReader(path, max_tokens)
    try:
        return reader.header, b"".join(reader.read(1) for _ in range(reader.num_blocks))
    finally:
        reader.close()


def test_what_is_written_is_read(tmp_path: Path) -> None:
    write(tmp_path / "file")
    assert read(tmp_path / "file") == (HEADER, b"".join(BLOCKS))
    assert os.listdir(tmp_path) == ["file"]


def test_a_file_has_no_name_before_it_is_finished_and_replaces_another_then(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("before")
    writer = SlotWriter(path, HEADER)
    writer.append(BLOCKS[0])
    assert path.read_text() == "before"
    writer.close()
    assert os.listdir(tmp_path) == ["file"]
    write(path, 1)
    assert read(path) == (HEADER, BLOCKS[0])


def test_a_file_that_was_cut_between_blocks_is_a_shorter_one(tmp_path: Path) -> None:
    whole, one = write(tmp_path / "whole"), write(tmp_path / "one", 1)
    (tmp_path / "cut").write_bytes(whole[: len(one)])
    assert read(tmp_path / "cut") == (HEADER, BLOCKS[0])


def test_blocks_cannot_change_places(tmp_path: Path) -> None:
    content = write(tmp_path / "file")
    size = BLOCK_BYTES + 16
    start = len(content) - 3 * size
    first, second = content[start : start + size], content[start + size : start + 2 * size]
    (tmp_path / "file").write_bytes(content[:start] + second + first + content[start + 2 * size :])
    with pytest.raises(SlotFileError, match="block 0 is damaged"):
        read(tmp_path / "file")


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_damage_is_noticed_or_changes_nothing(tmp_path: Path, data: st.DataObject) -> None:
    content = bytearray(write(tmp_path / "file"))
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(content) - 1))
        content[place] = data.draw(st.integers(0, 255))
    content = content[: data.draw(st.integers(0, len(content)))] + data.draw(st.binary(max_size=3))
    (tmp_path / "file").write_bytes(content)
    try:
        header, kv = read(tmp_path / "file")
    except SlotFileError:
        return
    # A header that was changed with care is another file's; its blocks are then not those of this one.
    assert b"".join(BLOCKS).startswith(kv)
    assert header == HEADER or kv == b""


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "it is not a saved slot of this version"),
        (b"GGUF\x03\x00\x00\x00 and more", "it is not a saved slot of this version"),
        (b"COHORTS\x01" + b"\xff" * 8, "its header has 18446744073709551615 bytes, the limit is"),
        (b"COHORTS\x01" + b"\x05" + b"\x00" * 7 + b"{", "it ends too early"),
        (b"COHORTS\x01" + b"\x02" + b"\x00" * 7 + b"{}", "origin: Field required"),
        (b"COHORTS\x01" + b"\x10\x27" + b"\x00" * 6 + b"[" * 10_000, "header: Invalid JSON"),
    ],
)
def test_what_is_no_saved_slot_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(SlotFileError) as error:
        read(tmp_path / "file")
    assert message in str(error.value)


def test_more_tokens_than_the_context_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "file")
    with pytest.raises(SlotFileError, match="it has 48 tokens, the context 47"):
        read(tmp_path / "file", 47)


def test_neither_a_link_nor_a_pipe_nor_a_folder_is_read(tmp_path: Path) -> None:
    write(tmp_path / "file")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError, match="symbolic links"):
        read(tmp_path / "link")
    with pytest.raises(SlotFileError, match="it is not a file"):
        read(tmp_path / "pipe")
    with pytest.raises((SlotFileError, OSError)):
        read(tmp_path / "folder")
