"""From the command line and the environment to settings: an argument for each setting, and messages that name what is
wrong. Command line over environment over default; which settings there are: settings.py.
"""

import argparse
from collections.abc import Sequence

from pydantic import ValidationError

from server.adapters.arguments import paths_at_scale_1, paths_with_scales
from server.foreign_flags import add_foreign_flags
from server.setting_flags import Flag
from server.settings import ENV_PREFIX, Settings

_OF_POLICY_FAIR = ("max_wait", "fair_slack", "max_active_lists", "adapter_weight")


class _AppendAdapters(argparse.Action):
    """Collect --lora and --lora-scaled into one list, in the order of the command line: the adapters' ids."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: object,
        option_string: str | None = None,
    ) -> None:
        read = paths_with_scales if option_string == "--lora-scaled" else paths_at_scale_1
        try:
            found = read(str(values))
        except ValueError as error:
            parser.error(f"argument {option_string}: {error}")
        namespace.lora = (*getattr(namespace, "lora", ()), *found)
        namespace.lora_scaled = ()


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Give `parser` one argument for each setting. Arguments that are not given leave no attribute behind."""
    for name, field in Settings.model_fields.items():
        spelling = _spelling(name)
        action: type[argparse.Action] | str = "store"
        if name in ("lora", "lora_scaled"):
            action = _AppendAdapters
        elif name in ("adapter_weight", "dry_sequence_breakers", "logit_bias", "lora_load_dir", "mix", "model_dir"):
            action = "append"
        elif field.annotation is bool:
            action = argparse.BooleanOptionalAction
        argument = parser.add_argument(*spelling.names, action=action, dest=name, default=argparse.SUPPRESS)
        argument.metavar = spelling.metavar
        argument.help = spelling.help
        if _is_worth_showing(field.default):
            argument.help += f" (default {field.default})"
    add_foreign_flags(parser)


def _spelling(name: str) -> Flag:
    return next(item for item in Settings.model_fields[name].metadata if isinstance(item, Flag))


def read_settings(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> Settings:
    """Return the settings that `arguments` and the environment give. A wrong one ends the process: code 2, a message
    that names it.
    """
    given = vars(parser.parse_args(arguments))
    try:
        settings = Settings.model_validate({name: given[name] for name in Settings.model_fields if name in given})
    except ValidationError as error:
        problems = [_describe(str(item["loc"][0]), item["msg"], item["input"], given) for item in error.errors()]
        parser.error("; ".join(problems))
    if settings.policy != "fair":
        for name in _OF_POLICY_FAIR:
            if name in settings.model_fields_set:
                parser.error(f"{_name_given(name, given)} is a setting of --policy fair, not of {settings.policy}")
    return settings


def _describe(field: str, message: str, value: object, given: dict[str, object]) -> str:
    if message == "Field required":
        return f"{'/'.join(_spelling(field).names)} is required"
    return f"{_name_given(field, given)}: {message[0].lower()}{message[1:]}, but got {value!r}"


def _name_given(field: str, given: dict[str, object]) -> str:
    """How the user spelled a setting: the flag, or the variable."""
    return "/".join(_spelling(field).names) if field in given else ENV_PREFIX + field.upper()


def _is_worth_showing(default: object) -> bool:
    return isinstance(default, int | float | str) and not isinstance(default, bool) and default != ""
