"""The gate: a rule fires on two inputs of different origin, or on jobs that tests record for it."""

from __future__ import annotations

import re
import sys

import pytest
from paths import ROOT

from traceq.claims.claim import Claim
from traceq.claims.rules import RULES
from traceq.claims.saying import MOST_WORDS
from traceq.claims.sentences import REMEDIES, SENTENCES

sys.path.insert(0, str(ROOT / "docs"))

from claims_page import PAGE, inputs_by_code, page

WAITING = {
    "allocator_retries",
    "buffer_broadcasts",
    "compiling",
    "desync",
    "empty_recording",
    "expert_imbalance",
    "foreign_trace",
    "fragmentation",
    "host_op",
    "host_round_trips",
    "late_ranks",
    "memory_delta",
    "memory_peak",
    "missing_ops",
    "never_arrived",
    "out_of_memory",
    "pipeline_bubble",
    "ranks_alone",
    "strategy",
    "worker_restarts",
}
"""Rules that have fired on fewer inputs so far, and rest on traces that tests build. No new rule may join them."""


def test_a_rule_has_fired_on_two_inputs_of_different_origin() -> None:
    assert {code for code in RULES if len(inputs_by_code()[code]) < 2} == WAITING


def test_every_rule_has_a_sentence_and_every_sentence_a_rule() -> None:
    assert SENTENCES.keys() == RULES.keys()
    assert {code for rule in RULES.values() for code in rule.explains} <= RULES.keys()


@pytest.mark.parametrize("code", RULES)
def test_a_sentence_is_short_before_its_measures_are_filled_in(code: str) -> None:
    for lead in SENTENCES[code].leads:
        words = lead.replace("{remedy}", REMEDIES.get(code, "")).split()
        assert len(words) <= MOST_WORDS, lead
    for clause in SENTENCES[code].evidence:
        assert len(clause.split()) <= MOST_WORDS, clause


def test_templates_name_fields_that_exist() -> None:
    subject = {"rank", "phase", "line", "op", "kind", "module", "collective", "remedy", "gain", "why_once"}
    basis = {"per_step", "a_step", "the_step", "in_steps"}
    source = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "traceq").rglob("*.py"))
    fields = {
        field
        for sentence in SENTENCES.values()
        for text in (*sentence.leads, *sentence.evidence)
        for field in re.findall(r"{(\w+)", text)
    }
    given, quoted = set(re.findall(r"\b(\w+)=", source)), set(re.findall(r'"(\w+)"', source))
    for field in fields - subject - basis:
        if field.endswith("_ranks"):  # by what a rank did
            continue
        is_named = {field, f"least_{field}"} & given or field.removesuffix("_by_step_ns") in quoted
        assert is_named, f"{field}: no measure has this name"


def test_the_page_is_what_rules_limits_and_evidence_say() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "python docs/claims_page.py"


def test_what_has_no_rule_has_the_words_of_its_package() -> None:
    from traceq.claims.saying import lead_of, text_of

    claim = Claim("of_a_plugin", lead="cold cache: read it first", evidence="2 s")
    assert (lead_of(claim), text_of(claim)) == ("cold cache: read it first", "cold cache: read it first; 2 s")
