"""Why a request is refused at the door. A refusal changes nothing.

Refusal
├── PromptRefused        the request itself cannot be served
│   ├── PromptEmpty
│   ├── PromptTooLong
│   └── SlotUnknown
└── Unavailable          the same request may be served later
    ├── QueueFull
    └── ShuttingDown
"""


class Refusal(Exception):
    """A request that was not accepted. The message carries the offending value and the bound."""


class PromptRefused(Refusal):
    """The request can never be served as it is."""


class PromptEmpty(PromptRefused):
    """There is no token to compute."""

    def __init__(self) -> None:
        super().__init__("prompt has 0 tokens, at least 1 is needed")


class PromptTooLong(PromptRefused):
    """The prompt leaves no room for one generated token."""

    def __init__(self, num_tokens: int, max_context: int, *, is_counted: bool = True) -> None:
        """`num_tokens` is what the prompt has; where it was not counted, what it has at least."""
        num = f"{num_tokens} tokens" if is_counted else f"at least {num_tokens} tokens"
        super().__init__(
            f"request ({num}) exceeds the available context size ({max_context} tokens), try increasing it"
        )
        self.num_tokens = num_tokens
        self.max_context = max_context


class SlotUnknown(PromptRefused):
    """The request names a slot that does not exist."""

    def __init__(self, slot_id: int, num_slots: int) -> None:
        super().__init__(f"id_slot is {slot_id}, the slots are 0 to {num_slots - 1}")
        self.slot_id = slot_id
        self.num_slots = num_slots


class Unavailable(Refusal):
    """The server cannot take the request now."""


class QueueFull(Unavailable):
    """As many requests wait as the queue may hold."""

    def __init__(self, num_waiting: int, max_waiting: int) -> None:
        super().__init__(f"{num_waiting} requests are waiting, the limit is {max_waiting}; try again later")
        self.num_waiting = num_waiting
        self.max_waiting = max_waiting


class ShuttingDown(Unavailable):
    """The server no longer takes requests."""

    def __init__(self) -> None:
        super().__init__("the server is shutting down")
