"""Regular expressions that are compiled by their first use: a report has three hundred, and needs half of them."""

from __future__ import annotations

import re
from typing import Any, AnyStr, cast

__all__ = ["regex"]


def regex(expression: AnyStr, flags: int = 0) -> re.Pattern[AnyStr]:
    """Return what `re.compile` returns, compiled when one of its attributes is used."""
    return cast("re.Pattern[AnyStr]", _Uncompiled(expression, flags))


class _Uncompiled:
    def __init__(self, expression: Any, flags: int) -> None:
        self._source = expression, flags

    def __reduce__(self) -> tuple[Any, ...]:
        return regex, self._source

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the compiled one, which this instance has from then on."""
        value = getattr(re.compile(*self._source), name)
        setattr(self, name, value)
        return value
