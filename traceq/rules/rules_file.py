"""Reader of a file of rules: `rules = ["..."]`, and `[[rule]]` tables with `rule` and `why`."""

from __future__ import annotations

import tomllib
from pathlib import Path

from traceq.errors import UnreadableInput, UsageFault
from traceq.locations import Most, read_whole
from traceq.rules.parse import Rule, parse

__all__ = ["read_rules"]


def read_rules(path: Path) -> tuple[Rule, ...]:
    """Return all rules of a TOML file, in order. Raises UnreadableInput, and UsageFault for an invalid rule."""
    try:
        content = tomllib.loads(read_whole(path, Most.RULES).decode())
    except OSError as fault:
        raise UnreadableInput(str(path), fault.strerror or str(fault), "a TOML file of rules") from None
    except RecursionError:
        raise UsageFault(f"{path}: nested too deeply; expected a list of rules") from None
    except ValueError as fault:  # of TOML, UTF-8, or a number of thousands of digits
        raise UsageFault(f"{path}: {fault}; expected TOML") from None
    texts, tables = content.pop("rules", []), content.pop("rule", [])
    is_list = isinstance(texts, list) and all(isinstance(text, str) for text in texts)
    is_tables = isinstance(tables, list) and all(_is_rule(table) for table in tables)
    if content or not is_list or not is_tables or not (texts or tables):
        unexpected = f"found '{next(iter(content))}'; " if content else ""
        raise UsageFault(
            f'{path}: {unexpected}expected rules = ["..."], or [[rule]] tables with rule = "..." and why = "..."'
        )
    try:
        return (*map(parse, texts), *(parse(table["rule"], table.get("why", "")) for table in tables))
    except UsageFault as fault:
        raise UsageFault(f"{path}: {fault}") from None


def _is_rule(table: object) -> bool:
    if not isinstance(table, dict) or "rule" not in table or not table.keys() <= {"rule", "why"}:
        return False
    return all(isinstance(value, str) for value in table.values())
