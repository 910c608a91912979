"""Packages that traceq can do without: imported where they are used, with one line where they are missing."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from traceq.errors import TraceqError


def import_or_fault(module: str, package: str = "") -> Any:
    """Return an imported module. Raises TraceqError that says how to install its package, else of the same name."""
    try:
        return import_module(module)
    except ImportError:
        package = package or module
        raise TraceqError(f"{package} is not installed: pip install {package}") from None
