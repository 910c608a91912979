"""Packages that traceq can do without: imported where they are used, with one line where they are missing."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from traceq.errors import UsageFault

__all__ = ["import_or_fault"]


def import_or_fault(package: str) -> Any:
    """Return an imported package. Raises UsageFault that says how to install it."""
    try:
        return import_module(package)
    except ImportError:
        raise UsageFault(f"{package} is not installed: pip install {package}") from None
