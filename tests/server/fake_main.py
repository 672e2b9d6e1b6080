"""`cohort serve` around the fake model, whose fourth step never ends: `python -m tests.server.fake_main serve …`.

The model `never` takes forever to load.
"""

import sys
import threading

from server.__main__ import read_command, read_serve_settings
from server.engine import Engine
from server.lifecycle import serve
from server.settings import Settings
from tests.server.fakes import FakeExecutor, Turnstile, fake_engine


def load(settings: Settings) -> Engine:
    """Return the fake engine under the settings of the command line."""
    if settings.model.name == "never":
        threading.Event().wait(60)
    turnstile = Turnstile()
    turnstile.let(3)
    return fake_engine(FakeExecutor(turnstile=turnstile), settings)


if __name__ == "__main__":
    sys.exit(serve(read_serve_settings(read_command(sys.argv[1:])[1]), load))
