"""How many examples a property test tries: a quarter by default, all of them in `make slow`."""

from __future__ import annotations

from hypothesis import settings

__all__ = ["up_to"]


def up_to(num_examples: int) -> settings:
    """Settings for `num_examples` under the profile `all`, and for a quarter of them under `sample`."""
    share = settings.get_profile("all").max_examples // settings().max_examples
    return settings(max_examples=-(-num_examples // share))
