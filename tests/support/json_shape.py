"""JSON held against the keys and types that are promised."""

from __future__ import annotations

from typing import Any


def fits(value: Any, shape: Any, where: str) -> None:
    """Every key that is promised is there, with a value of its type, in every row; each list has a row."""
    if isinstance(shape, dict):
        assert shape.keys() <= value.keys(), (where, shape.keys() - value.keys())
        for key, inner in shape.items():
            fits(value[key], inner, f"{where}.{key}")
    elif isinstance(shape, list):
        assert value, where
        for row in value:
            fits(row, shape[0], where)
    else:
        assert isinstance(value, shape), (where, value)
        assert not isinstance(value, bool) or shape is bool, where
