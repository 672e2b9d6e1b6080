"""From the settings to the catalog at the start: the adapters of the command line first, then those of the folder by
name, then the mixes of them. Loads nothing.
"""

import logging
from collections.abc import Sequence
from pathlib import Path

from server.adapters.arguments import MixArgument
from server.adapters.catalog import AdapterCatalog, AdapterSource, NameRefused
from server.adapters.paths import AdapterFolder, adapter_names, split_name
from server.adapters.weights import BASE_NAME
from server.settings import Settings

log = logging.getLogger(__name__)


def model_names(settings: Settings) -> tuple[str, ...]:
    """Return the model's names in the API: the aliases in alphabetical order, or its path."""
    aliases = sorted(alias.strip() for alias in settings.alias.split(",") if alias.strip())
    return tuple(aliases) or (str(settings.model),)


def can_come_later(settings: Settings) -> bool:
    """Whether there can be adapters later that there are not at the start."""
    return settings.lora_dir is not None or bool(settings.lora_load_dir)


def open_catalog(settings: Settings) -> AdapterCatalog:
    """Return the catalog of what the settings name. Raises ValueError naming the adapter, the folder or the mix that
    cannot be.
    """
    folder = _open_folder(settings.lora_dir)
    catalog = AdapterCatalog(
        model_names(settings),
        find=(lambda name: None) if folder is None else folder.find,
        are_names_expected=can_come_later(settings),
    )
    _add_arguments(catalog, settings)
    if folder is not None:
        _add_folder(catalog, folder)
    _define_mixes(catalog, settings.mix)
    return catalog


def _open_folder(path: Path | None) -> AdapterFolder | None:
    if path is None:
        return None
    try:
        return AdapterFolder(path)
    except OSError as error:
        raise ValueError(f"--lora-dir {path}: {error.strerror}") from error


def _add_arguments(catalog: AdapterCatalog, settings: Settings) -> None:
    named = [split_name(argument.path) for argument in settings.adapters]
    given = [name for name, _ in named if name is not None]
    unnamed = [path for name, path in named if name is None]
    found = iter(adapter_names(unnamed, taken=[*catalog.base_names, BASE_NAME, *given]))
    for argument, (name, path) in zip(settings.adapters, named, strict=True):
        scale = 0.0 if settings.lora_init_without_apply else argument.scale
        try:
            catalog.add(name or next(found), path, AdapterSource.COMMAND_LINE, is_pinned=True, scale=scale)
        except NameRefused as error:
            raise NameRefused(f"--lora {argument.path}: {error}") from error


def _add_folder(catalog: AdapterCatalog, folder: AdapterFolder) -> None:
    known = {Path(entry.path).resolve() for entry in catalog.entries}
    for name in folder.names():
        path = folder.find(name)
        if path is None or Path(path).resolve() in known:
            continue
        try:
            catalog.add(name, path, AdapterSource.FOLDER)
        except NameRefused as error:
            # One odd file in a folder of hundreds is no reason not to start; it is not served under any name.
            log.warning("--lora-dir: %s is left out: %s", path, error)


def _define_mixes(catalog: AdapterCatalog, mixes: Sequence[MixArgument]) -> None:
    for mix in mixes:
        try:
            catalog.check_name(mix.name)
            catalog.define_mix(mix.name, mix.parts)
        except ValueError as error:
            raise ValueError(f"--mix {mix.name}: {error}") from error
