"""Hypothesis profiles: `quick` for `make test`, the same examples every time; `long` explores for minutes.

HYPOTHESIS_PROFILE=long runs every property test of this folder under the long profile."""

import os

from hypothesis import HealthCheck, Phase, settings

settings.register_profile(
    "quick",
    max_examples=300,
    stateful_step_count=60,
    deadline=None,
    derandomize=True,
    phases=[Phase.explicit, Phase.generate],  # shrinking a long game takes minutes; the long profile does it
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile(
    "long",
    max_examples=3000,
    stateful_step_count=150,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    print_blob=True,
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))
