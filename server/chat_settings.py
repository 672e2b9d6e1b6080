"""The settings that say how chats become prompts, and what is made of thinking. Flags and defaults are llama-server's;
what a request says goes before.
"""

import json
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, field_validator
from pydantic_core import PydanticCustomError
from pydantic_settings import BaseSettings, NoDecode

from server.setting_flags import flag


class ChatSettings(BaseSettings):
    """The part of the settings that is about chats."""

    chat_template: Annotated[
        str,
        flag(
            "--chat-template",
            help="a Jinja chat template instead of the model's own, or the name of one",
            metavar="TEXT",
        ),
    ] = ""
    chat_template_file: Annotated[
        Path | None, flag("--chat-template-file", help="a file with such a template", metavar="PATH")
    ] = None
    chat_template_kwargs: Annotated[
        dict[str, object],
        NoDecode,
        flag("--chat-template-kwargs", help="variables of the template, a JSON object", metavar="JSON"),
    ] = {}
    prefill_assistant: Annotated[
        bool, flag("--prefill-assistant", help="let replies continue an assistant's message at the end of a chat")
    ] = True
    reasoning: Annotated[
        Literal["auto", "on", "off"],
        flag("-rea", "--reasoning", help="off: ask templates for replies without thinking"),
    ] = "auto"
    reasoning_format: Annotated[
        Literal["auto", "none", "deepseek", "deepseek-legacy"],
        flag(
            "--reasoning-format",
            help="where thinking goes. auto, deepseek: into a field of its own; deepseek-legacy: there and into the "
            "content; none: into the content",
        ),
    ] = "auto"
    reasoning_preserve: Annotated[
        bool, flag("--reasoning-preserve", help="ask templates to show the thoughts of all earlier replies")
    ] = True
    reasoning_budget: Annotated[
        int, Field(ge=-1), flag("--reasoning-budget", help="most tokens of thinking; -1: no limit", metavar="N")
    ] = -1
    reasoning_budget_message: Annotated[
        str,
        flag("--reasoning-budget-message", help="what ends thinking that is cut off, before the mark", metavar="TEXT"),
    ] = ""

    @field_validator("chat_template_kwargs", mode="before")
    @classmethod
    def _read_variables(cls, value: object) -> object:
        if not isinstance(value, str):
            return value
        try:
            variables = json.loads(value)
        except ValueError as error:
            raise PydanticCustomError("json", "must be JSON: {error}", {"error": str(error)}) from None
        if not isinstance(variables, dict):
            raise PydanticCustomError("json_object", "must be a JSON object")
        if not isinstance(variables.get("enable_thinking"), bool | None):
            raise PydanticCustomError("enable_thinking", "enable_thinking must be true or false")
        return variables
