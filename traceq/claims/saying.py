"""A claim in words: its template filled with its measures, so that a sentence never decides what is true."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from traceq.claims.claim import Basis, Claim, Measure, unit_of
from traceq.claims.sentences import GAINS, ONCE, REMEDIES, SENTENCES, SHARED_EVIDENCE, SHARES_OF
from traceq.units import Unit, format_ends, format_value

MOST_WORDS = 20
"""Words of a lead."""
_FIELD = re.compile(r"{(\w+)(?::([\w ]+))?}")
_ENDS = "least_{}", "most_{}"


class _Unknown(Exception):
    """A field of a template that is not known."""


def lead_of(claim: Claim) -> str:
    """Return what a claim is and what to do, in at most 20 words."""
    sentence = SENTENCES.get(claim.code)
    lead = next(filled(sentence.leads, _fields(claim)), claim.code) if sentence else claim.lead
    words = lead.split()
    return " ".join(words[:MOST_WORDS]) + ("…" if len(words) > MOST_WORDS else "")


def line_of(claim: Claim) -> str:
    """Return the line of source that a claim is about, `file.py:7`; "" for none."""
    named = re.search(r"(?<![\w./-])[\w./-]+\.py:\d+", f"{claim.subject.line} {lead_of(claim)}")
    return named[0] if named else ""


def evidence_of(claim: Claim) -> str:
    """Return what a claim rests on: the clauses of which everything is known."""
    sentence = SENTENCES.get(claim.code)
    if sentence is None:
        return claim.evidence
    clauses = [*filled((*sentence.evidence, *SHARED_EVIDENCE), _fields(claim))]
    rank = claim.subject.rank
    if rank is not None and "{rank}" not in "".join((*sentence.leads, *sentence.evidence)):
        clauses[:1] = [f"rank {rank}: {clauses[0]}"] if clauses else [f"on rank {rank}"]
    return "; ".join(clauses)


def text_of(claim: Claim) -> str:
    """Return all that is said of a claim: its lead, what it rests on, and what a step gains."""
    gain = ""
    if claim.gain is not None and claim.code in SENTENCES:
        template = GAINS[claim.gain_by if claim.gain[1] else "nothing"]
        gain = next(filled((template,), _fields(claim)))
    return "; ".join(filter(None, (lead_of(claim), evidence_of(claim), gain)))


def filled(templates: Iterable[str], fields: Mapping[str, Measure | None]) -> Iterator[str]:
    """Yield the templates of which every field is known, each filled with its value and unit.

    A field without a value is the range of two, `{saved_ns}` of `least_saved_ns` and `most_saved_ns`; one with a noun,
    as `{num_calls:call}`, is counted.
    """
    for template in templates:
        try:
            yield _FIELD.sub(lambda match: _word(fields, match[1], match[2] or ""), template)
        except _Unknown:
            continue


def _word(fields: Mapping[str, Measure | None], name: str, noun: str) -> str:
    """Return a field in words, of several things with their noun. Raises _Unknown."""
    value = fields.get(name)
    if value is None or value == "":
        least, most = (fields.get(each.format(name)) for each in _ENDS)
        if least is None or most is None:
            raise _Unknown(name)
        return format_ends(float(least), float(most), unit_of(name))
    if isinstance(value, str):
        return value
    text = format_value(value, unit_of(name))
    return f"{text} {noun}{'' if value == 1 else 's'}" if noun else text


def _fields(claim: Claim) -> Mapping[str, Measure | None]:
    """Return what templates of claims may name: parts of the subject, what is said of steps, and the measures."""
    subject, basis = claim.subject, claim.basis or Basis(1)
    remedy = REMEDIES.get(claim.remedy or claim.code, "")
    step = ("traced step" if basis.is_beside_unprofiled else "step") if basis.num_steps else ""
    a_step = f"a {step}" if step else "the trace"
    share_of = next(filled(filter(None, [SHARES_OF.get(str(claim.measures.get("share_of")))]), claim.measures), "")
    least_ns, most_ns = claim.gain or (0, 0)
    return {
        "rank": None if subject.rank is None else str(subject.rank),
        "phase": plain_phase(subject.phase),
        "line": subject.line,
        "op": subject.op,
        "kind": "" if subject.kind == "alloc" else subject.kind,  # of syncs: an allocation is none
        "module": subject.module,
        "collective": subject.collective,
        "remedy": next(filled((remedy,), claim.measures), "") if remedy else "",
        "why_once": ONCE.get(str(claim.measures.get("once")), ""),
        "gain": format_ends(least_ns, most_ns, Unit.NS),
        "per_step": f"per {step}" if step else "of the trace",
        "a_step": a_step,
        "it": share_of or "it",
        "whole": share_of or a_step,
        "the_step": f"the {step}" if step else "the trace",
        "what_gains": f"{a_step} of {rank_words(basis)} alone" if basis.num_alone else a_step,
        "the_jobs_step": f"the job's {step}" if step else "the trace",
        "in_steps": in_steps(claim.basis),
        **claim.measures,
    }


def rank_words(basis: Basis) -> str:
    """Return of which ranks a gain is, where others are missing."""
    return "these ranks" if basis.num_alone > 1 else "this rank"


def in_steps(basis: Basis | None) -> str:
    """Return `in these 3 traced steps`, on which a claim rests; `in this trace` where that has no steps."""
    if basis is None or not basis.num_steps:
        return "in this trace"
    kind = "unprofiled" if basis.is_unprofiled else "traced"
    return f"in this one {kind} step" if basis.num_steps == 1 else f"in these {basis.num_steps:,} {kind} steps"


def plain_phase(name: str) -> str:
    """Return the name of a phase without its decoration: `forward` of `## forward ##`."""
    return name.strip("# ") or name
