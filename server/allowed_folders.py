"""Which paths a client may name: those inside folders that a setting allows, after links and dots are resolved."""

from collections.abc import Iterable
from pathlib import Path

from server.errors import FieldInvalid, PathForbidden


class AllowedFolders:
    """The folders of one setting."""

    def __init__(self, folders: Iterable[str], flag: str) -> None:
        """`flag` is how messages call the setting."""
        self._folders = [Path(folder.strip()).resolve() for folder in folders if folder.strip()]
        self._flag = flag

    def __bool__(self) -> bool:
        return bool(self._folders)

    def resolve(self, text: str, field: str) -> Path:
        """Return the path that a client's `field` means, without links and dots, so that it cannot come to mean another
        one. Raises FieldInvalid where it is none, PathForbidden where it is not inside one of the folders.
        """
        try:
            path = Path(text).resolve()
        except (OSError, RuntimeError, ValueError) as error:  # a loop of links, a null character
            raise FieldInvalid(field, f"must be a path, but got {text[:200]!r}: {error}") from error
        if not any(path != folder and path.is_relative_to(folder) for folder in self._folders):
            raise PathForbidden(f"Field '{field}': {text[:200]!r} is outside the folders that {self._flag} allows")
        return path
