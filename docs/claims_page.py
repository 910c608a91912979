"""Writes docs/claims.md: every rule with its limits and sentences, and the inputs on which it fires.

    python docs/claims_page.py

Evidence is that of the recorded answers (`tests/answers`), and of scripts that `benchmarks/reports.py` has recorded.
"""

from __future__ import annotations

import gzip
import json
import sys
from collections import defaultdict
from pathlib import Path

from traceq.claims import limits
from traceq.claims.rules import RULES, Rule
from traceq.claims.sentences import REMEDIES, SENTENCES

__all__ = ["PAGE", "inputs_by_code", "page"]

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "claims.md"
_RECORD = ROOT / "tests" / "answers" / "recorded.json.gz"
_JOBS = ROOT / "tests" / "claims" / "recorded_jobs.json"
_HEAD = """# Claims

What `traceq show` may say, generated from `traceq/claims` by `python docs/claims_page.py`. A rule makes a claim from
its measures and limits; a template says it. Claims are ranked by what a step gains, and one that another explains
better is left out. A new rule has to fire on two inputs of different origin, and be right there.

"""


def inputs_by_code() -> dict[str, set[str]]:
    """Return the inputs, of different origin, on which a rule fires by the recorded answers."""
    inputs = defaultdict[str, set[str]](set)
    for question, answer in json.loads(gzip.decompress(_RECORD.read_bytes())).items():
        for code, *_ in answer.get("findings", ()):
            inputs[code] |= {_origin(path) for path in question.split()[1:]}
    for script, codes in json.loads(_JOBS.read_text(encoding="utf-8")).items():
        for code in codes:
            inputs[code].add(f"a recording of {script}")
    return inputs


def _origin(path: str) -> str:
    """Return `ddp-a100` for a trace of that recording, `fixtures/example` for one that was made here."""
    place, _, rest = path.partition("/")
    name = rest.partition("/")[0].partition(".")[0]
    return f"{place}/{name}" if place == "fixtures" else name


def page() -> str:
    """Return the text of the page."""
    inputs = inputs_by_code()
    return _HEAD + "\n".join(_section(rule, sorted(inputs[rule.code])) for rule in RULES.values()) + _limits()


def _section(rule: Rule, inputs: list[str]) -> str:
    sentence = SENTENCES[rule.code]
    names = {id(value): name for name, value in vars(limits).items() if isinstance(value, limits.Limit)}
    lines = [f"## `{rule.code}`", "", f"{rule.meaning[:1].upper()}{rule.meaning[1:]}.", ""]
    lines += [f"- says: {' / '.join(f'`{lead}`' for lead in sentence.leads)}"]
    lines += [f"- evidence: {' · '.join(f'`{clause}`' for clause in sentence.evidence)}"] if sentence.evidence else []
    remedy = REMEDIES.get(rule.code, "")
    lines += [f"- remedy: `{remedy}`"] if remedy else []
    lines += [f"- limits: {', '.join(f'`{names[id(limit)]}`' for limit in rule.limits)}"] if rule.limits else []
    explained = (*rule.explains, *(f"syncs of kind {kind}" for kind in rule.explains_syncs))
    lines += [f"- explains: {', '.join(f'`{code}`' for code in explained)}"] if explained else []
    lines += [f"- ask: `traceq whatif PATH {rule.whatif}`"] if rule.whatif else []
    few = "" if len(inputs) > 1 else ", and on traces that tests build" if inputs else "traces that tests build"
    lines += [f"- fires on: {', '.join(inputs)}{few}"]
    return "\n".join(lines) + "\n"


def _limits() -> str:
    rows = [
        f"| `{name}` | {value:g} | {value.unit} | {value.why} | {value.evidence} |"
        for name, value in vars(limits).items()
        if isinstance(value, limits.Limit)
    ]
    return "\n## Limits\n\n| limit | value | of | why | rests on |\n|---|---|---|---|---|\n" + "\n".join(rows) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    sys.stdout.write(f"{PAGE}\n")
