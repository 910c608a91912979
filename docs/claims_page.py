"""Writes docs/claims.md: every rule with its limits and sentences, and the inputs on which it fires.

    python docs/claims_page.py

Evidence is that of the recorded answers (`tests/answers`), and of scripts that `benchmarks/reports.py` has recorded.
"""

from __future__ import annotations

import ast
import gzip
import inspect
import json
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path

from traceq.claims import limits, rules
from traceq.claims.rules import RULES
from traceq.claims.sentences import MEANINGS, REMEDIES, SENTENCES

__all__ = ["PAGE", "inputs_by_code", "page"]

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "claims.md"
_RECORD = ROOT / "tests" / "answers" / "recorded.json.gz"
_JOBS = ROOT / "tests" / "claims" / "recorded_jobs.json"
_HEAD = """# Claims

What `traceq show` may say, generated from `traceq/claims` by `python docs/claims_page.py`. A rule makes a claim from
measures and [limits](#limits); a template says it, without parts whose measure is unknown. Claims are ranked by what a
step gains; what another claim explains better is left out. Each rule fires, rightly, on two inputs of different
origin: public traces, fixtures, scripts recorded by `benchmarks/reports.py` (`c01_...`), or traces of `tests`.

"""
_MANY_CODES = 2
"""Number of claims with one clause of evidence from which on they are listed beside it."""
_SHOWN = 2
"""Inputs named of a rule, which may fire on more."""
_FEW_WORDS = 2
"""Words of a clause, besides measures, up to which it tells nothing on its own."""
_CONVENTIONS = "Each with its unit and reason: conventions, unless stated otherwise."


def inputs_by_code() -> dict[str, set[str]]:
    """Return the inputs, of different origin, on which a rule fires by the recorded answers."""
    inputs = defaultdict[str, set[str]](set)
    for question, answer in json.loads(gzip.decompress(_RECORD.read_bytes())).items():
        for code, *_ in answer.get("findings", ()):
            inputs[code] |= {_origin(path) for path in question.split()[1:]}
    for script, codes in json.loads(_JOBS.read_text(encoding="utf-8")).items():
        for code in codes:
            inputs[code].add(script)
    return inputs


def _origin(path: str) -> str:
    """Return `ddp-a100` for a trace of that recording, `fixtures/example` for one that was made here."""
    place, _, rest = path.partition("/")
    name = rest.partition("/")[0].partition(".")[0]
    return f"{place}/{name}" if place == "fixtures" else name


def page() -> str:
    """Return the text of the page."""
    inputs, shared = inputs_by_code(), _shared_evidence()
    sections = (_section(code, sorted(inputs[code]), shared) for code in RULES)
    return "\n".join((_HEAD + "\n".join(sections), _evidence(shared), _limits()))


def _section(code: str, inputs: list[str], shared: Mapping[str, tuple[str, ...]]) -> str:
    rule, sentence, meaning = RULES[code], SENTENCES[code], MEANINGS[code]
    evidence = [clause for clause in sentence.evidence if clause not in shared]
    explained = (*rule.explains, *(f"syncs of kind {kind}" for kind in rule.explains_syncs))
    origins = inputs[:_SHOWN] + (["tests"] if len(inputs) < _SHOWN else [])
    first = 0 if meaning.startswith("torch.") else 1
    lines = [f"## `{code}`", "", f"{meaning[:first].upper()}{meaning[first:]}.", ""]
    lines += [f"- says: {_listed(_distinct(sentence.leads))}"]
    lines += [f"- evidence: {_listed(evidence)}"] if evidence else []
    lines += [f"- remedy: `{remedy}`"] if (remedy := REMEDIES.get(code)) else []
    lines += [f"- limits: {_listed(names)}"] if (names := _limits_of_rules()[code]) else []
    lines += [f"- explains: {_listed(explained)}"] if explained else []
    lines += [f"- ask: `traceq whatif {rule.whatif}`"] if rule.whatif else []
    lines += [f"- toggle: {_listed(rule.toggles)}"] if rule.toggles else []
    lines += [f"- inputs: {', '.join(origins)}"]
    return "\n".join(lines) + "\n"


@cache
def _limits_of_rules() -> dict[str, list[str]]:
    """Return the names of the limits of each rule, as its row has them: two may have one value."""
    tree = ast.parse(inspect.getsource(rules))
    rows = next(node for node in tree.body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "RULES")
    assert isinstance(rows.value, ast.Dict)
    return {
        ast.literal_eval(code): [
            node.id for node in ast.walk(rule) if isinstance(node, ast.Name) and node.id in vars(limits)
        ]
        for code, rule in zip(rows.value.keys, rows.value.values, strict=True)
        if code is not None
    }


def _listed(texts: Iterable[str]) -> str:
    return ", ".join("`" + text.replace("`", "'") + "`" for text in texts)


def _distinct(leads: Sequence[str]) -> list[str]:
    """Return the leads without those that only leave out a part of an earlier one, whose measure is unknown."""
    return [lead for place, lead in enumerate(leads) if not any(_is_part(lead, each) for each in leads[:place])]


def _is_part(lead: str, longer: str) -> bool:
    remaining = iter(_words(longer))
    return all(word in remaining for word in _words(lead))


def _words(text: str) -> list[str]:
    return [word.strip(":,") for word in text.split()]


def _shared_evidence() -> dict[str, tuple[str, ...]]:
    """Return the clauses that many claims have, each with their codes."""
    codes = defaultdict[str, list[str]](list)
    for code in RULES:
        for clause in SENTENCES[code].evidence:
            codes[clause].append(code)
    return {clause: tuple(each) for clause, each in codes.items() if len(each) >= _MANY_CODES}


def _evidence(shared: Mapping[str, tuple[str, ...]]) -> str:
    groups = defaultdict[tuple[str, ...], list[str]](list)
    for clause, codes in shared.items():
        if len(_words(re.sub("{.*?}", "", clause))) > _FEW_WORDS:
            groups[codes].append(clause)
    rows = [f"- {_listed(clauses)}: {', '.join(codes)}" for codes, clauses in groups.items()]
    return "## Evidence of several claims\n\n" + "\n".join(rows) + "\n"


def _limits() -> str:
    rows = re.findall(r"^([A-Z_]+) = (\S+)  # (.+)$", inspect.getsource(limits), re.MULTILINE)
    return (
        f"## Limits\n\n{_CONVENTIONS}\n\n" + "\n".join(f"- `{name}`: {value} {why}" for name, value, why in rows) + "\n"
    )


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    sys.stdout.write(f"{PAGE}\n")
