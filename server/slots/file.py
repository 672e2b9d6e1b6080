"""The file of a saved slot: which model and adapter list its tokens were computed by, the tokens, and their KV block by
block.

    8 bytes  the format's name and version
    8 bytes  the header's length, little-endian
    header   JSON: SlotHeader
    blocks   of each: its bytes as the KV cache gives them, and 16 bytes of a hash of the header, its place and these

A file may come from anybody: every length is checked before it is believed, and every block before it is used. A file
that was cut between two blocks is a shorter one. A new file takes its name only when it is complete.
"""

import hashlib
import os
import secrets
import stat
import struct
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, BinaryIO, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from scheduler.batch import BLOCK_SIZE

_MAGIC = b"COHORTS\x01"
_LENGTH = struct.Struct("<Q")
_DIGEST_BYTES = 16
_MAX_HEADER_BYTES = 2**20
_MAX_TOKEN_BYTES = 24
"""Of a token in the header."""


class SlotFileError(ValueError):
    """A file that is no saved slot, or a damaged one; the message says what is wrong."""


class SavedAdapter(NamedTuple):
    """An element of the list that a slot was computed under."""

    digest: str
    scale: float
    name: str
    """For messages."""


class SlotHeader(BaseModel):
    """What a saved slot is."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", allow_inf_nan=False)

    origin: dict[str, str]
    """The model, and the arithmetic."""
    adapters: tuple[SavedAdapter, ...]
    """In the order in which they were applied."""
    activations: tuple[tuple[Annotated[int, Field(ge=0)], Annotated[int, Field(ge=0)]], ...]
    """(position, index in `adapters`) of those that act from a position on."""
    tokens: tuple[Annotated[int, Field(ge=0)], ...]
    block_bytes: Annotated[int, Field(gt=0)]

    @property
    def num_blocks(self) -> int:
        """Full blocks of the tokens."""
        return len(self.tokens) // BLOCK_SIZE


@dataclass(frozen=True, slots=True)
class _Stamp:
    """Makes the hashes of one file's blocks."""

    header: bytes

    def of(self, index: int, content: bytes) -> bytes:
        digest = hashlib.blake2b(content, digest_size=_DIGEST_BYTES, key=hashlib.sha256(self.header).digest())
        digest.update(_LENGTH.pack(index))
        return digest.digest()


class SlotWriter:
    """A file that is being written. It has its name after `finish` and none before. Close it, finished or not."""

    def __init__(self, path: Path, header: SlotHeader) -> None:
        """Raises OSError."""
        self._path = path
        self._block_bytes = header.block_bytes
        self._temporary = path.with_name(f".{secrets.token_hex(8)}.part")
        content = header.model_dump_json().encode()
        self._stamp = _Stamp(content)
        self._file = self._temporary.open("xb")
        self._file.write(_MAGIC + _LENGTH.pack(len(content)) + content)
        self._num_blocks = 0

    def append(self, content: bytes) -> None:
        """Write the next blocks. Raises OSError."""
        for start in range(0, len(content), self._block_bytes):
            block = content[start : start + self._block_bytes]
            self._file.write(block + self._stamp.of(self._num_blocks, block))
            self._num_blocks += 1

    def finish(self) -> int:
        """Give the file its name, in place of one that had it; return its length. Raises OSError."""
        self._file.flush()
        os.fsync(self._file.fileno())
        num_bytes = self._file.tell()
        self._file.close()
        self._temporary.replace(self._path)
        return num_bytes

    def close(self) -> None:
        """Leave nothing behind of a file that is not finished."""
        self._file.close()
        self._temporary.unlink(missing_ok=True)


class SlotReader:
    """A saved slot that is read. Close it."""

    def __init__(self, path: Path, max_tokens: int) -> None:
        """Raises SlotFileError where it is none, or has more than `max_tokens` tokens, and OSError."""
        # A pipe would wait for somebody who writes to it; a link may lead out of the folder.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        self._file: BinaryIO = os.fdopen(descriptor, "rb")
        with ExitStack() as unless_sound:
            unless_sound.callback(self._file.close)
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise SlotFileError("it is not a file")
            self.num_bytes = status.st_size
            self.header, self._stamp = self._read_header(max_tokens)
            self._start = self._file.tell()
            self.num_blocks = self._count_blocks()
            unless_sound.pop_all()

    def _read_header(self, max_tokens: int) -> tuple[SlotHeader, _Stamp]:
        if self._file.read(len(_MAGIC)) != _MAGIC:
            raise SlotFileError("it is not a saved slot of this version")
        [length] = _LENGTH.unpack(self._exactly(_LENGTH.size))
        limit = _MAX_HEADER_BYTES + _MAX_TOKEN_BYTES * max_tokens
        if length > limit:
            raise SlotFileError(f"its header has {length} bytes, the limit is {limit}")
        content = self._exactly(length)
        try:
            header = SlotHeader.model_validate_json(content)
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(map(str, first["loc"])) or "header"
            raise SlotFileError(f"{place}: {first['msg']}") from None
        if len(header.tokens) > max_tokens:
            raise SlotFileError(f"it has {len(header.tokens)} tokens, the context {max_tokens}")
        if any(index >= len(header.adapters) for _, index in header.activations):
            raise SlotFileError("activations: names an adapter that is not in the list")
        return header, _Stamp(content)

    def _count_blocks(self) -> int:
        num_blocks, rest = divmod(self.num_bytes - self._start, self.header.block_bytes + _DIGEST_BYTES)
        if rest or num_blocks > self.header.num_blocks:
            raise SlotFileError(f"it has {self.num_bytes} bytes, which is not what its header says")
        return num_blocks

    def read(self, num_blocks: int) -> bytes:
        """Return the KV of the next blocks. Raises SlotFileError and OSError."""
        blocks = []
        for _ in range(num_blocks):
            place = self._file.tell()
            index = (place - self._start) // (self.header.block_bytes + _DIGEST_BYTES)
            block = self._exactly(self.header.block_bytes)
            if self._exactly(_DIGEST_BYTES) != self._stamp.of(index, block):
                raise SlotFileError(f"block {index} is damaged")
            blocks.append(block)
        return b"".join(blocks)

    def _exactly(self, num_bytes: int) -> bytes:
        content = self._file.read(num_bytes)
        if len(content) != num_bytes:
            raise SlotFileError("it ends too early")
        return content

    def close(self) -> None:
        """Close the file."""
        self._file.close()
