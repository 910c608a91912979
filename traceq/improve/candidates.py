"""Candidates: values of toggles in the order in which they are tried, what each should gain, and the code for it."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from traceq.claims.claim import Claim
from traceq.claims.rules import rule_of
from traceq.frozen import frozen
from traceq.threshold import THRESHOLD_PCT


@frozen
class Remedy:
    """What to write instead of trying it: `code`, at the line of the script that `pattern` finds.

    `phase`: that whose time is the most it can gain; "" if it may change the time of any. `overlaps`: nor can it gain
    more than the rest of the step, beside which the phase would run. `is_slower`: nobody tries it to save time.
    """

    code: str = ""
    pattern: str = ""
    phase: str = ""
    overlaps: bool = False
    is_slower: bool = False


_OPTIMIZER = r"\b(optim|\w*Adam\w*|SGD|Adagrad|RMSprop)\b.*\("

_REMEDIES: Mapping[str, Remedy] = {
    "@attention": Remedy("torch.nn.attention.sdpa_kernel(...), or attn_implementation='{value}'"),
    "@autocast": Remedy("torch.autocast(..., enabled=False)", r"autocast\("),
    "@channels_last": Remedy("model.to(memory_format=torch.channels_last)"),
    "@checkpointing": Remedy(is_slower=True),
    "@compile": Remedy("no torch.compile", r"torch\.compile|\.compile\("),
    "@cudnn_benchmark": Remedy("torch.backends.cudnn.benchmark = True"),
    "@ddp": Remedy("DistributedDataParallel(..., broadcast_buffers=False)", r"\b(DDP|DistributedDataParallel)\("),
    "@find_unused=off": Remedy("find_unused_parameters=False", r"find_unused_parameters\s*=\s*True"),
    "@find_unused": Remedy(is_slower=True),
    "@gc=off": Remedy("gc.disable() once, and gc.collect() where a step may be long"),
    "@gc": Remedy(is_slower=True),
    "@matmul_precision": Remedy("torch.set_float32_matmul_precision('{value}')"),
    "@no_sync": Remedy("model.no_sync() around all backward passes but the last", r"\.backward\("),
    "@optimizer": Remedy("{value}=True", _OPTIMIZER, phase="optimizer"),
    "@prefetch": Remedy(
        "num_workers=1, or a thread that takes the next batch", r"DataLoader\(", "dataload_wait", overlaps=True
    ),
    "@threads": Remedy("torch.set_num_threads({value})", r"set_num_threads\("),
}
"""By `@toggle=value`, or `@toggle` for its other values."""


def remedy_of(toggle: str, value: str) -> Remedy:
    """Return the remedy of a value of a toggle; one without code for a toggle of the user, or of another package."""
    remedy = _REMEDIES.get(f"{toggle}={value}") or _REMEDIES.get(toggle) or Remedy(f"{toggle} = {value}")
    return replace(remedy, code=remedy.code.format(value=value))


def line_of(pattern: str, source: str) -> int:
    """Return the number of the only line of a source that matches, comments aside; 0 where none or several do."""
    lines = (line.partition("#")[0] for line in source.splitlines())
    numbers = [number for number, line in enumerate(lines, 1) if re.search(pattern, line)]
    return numbers[0] if pattern and len(numbers) == 1 else 0


@frozen
class Candidate:
    """A value of a toggle; `lead` is the code of the claim that it answers.

    `predicted_ns` is what a step should gain, at least and at most, by that `lead` or by the time of the `phase` that
    it changes (`predicted_by`); None where nothing bounds it.
    """

    toggle: str
    value: str
    lead: str = ""
    predicted_ns: tuple[int, int] | None = None
    predicted_by: str = ""


def candidates(
    toggles: Mapping[str, Sequence[str]],
    claims: Sequence[Claim],
    step_ns: int,
    phases_ns: Mapping[str, int],
    traced: float = 1.0,
) -> tuple[Candidate, ...]:
    """Return the values that may gain something, those first that answer a lead, then by the most they may gain.

    `toggles`: values by name, of which the first is the job's own. `step_ns` and `phases_ns`: the mean step, and its
    time by phase. A traced step takes `traced` times as long.
    """
    ranked = []
    for toggle, (_, *values) in toggles.items():
        lead = next((claim for claim in claims if toggle in rule_of(claim).toggles), None)
        for value in values:
            remedy = remedy_of(toggle, value)
            predicted_ns, by = gain_ns(lead, traced) if lead else None, "lead"
            if remedy.phase:
                bound_ns = phases_ns.get(remedy.phase, 0)
                bound_ns = min(bound_ns, step_ns - bound_ns) if remedy.overlaps else bound_ns
                if predicted_ns is None or bound_ns < predicted_ns[1]:
                    predicted_ns, by = (min(predicted_ns[0], bound_ns) if predicted_ns else 0, bound_ns), "phase"
            if not remedy.is_slower:
                code = lead.code if lead else ""
                ranked.append(Candidate(toggle, value, code, predicted_ns, by if predicted_ns else ""))
    return tuple(sorted(ranked, key=_rank))


def _rank(candidate: Candidate) -> tuple[bool, bool, int]:
    most_ns = candidate.predicted_ns[1] if candidate.predicted_ns else 0
    return not candidate.lead, candidate.predicted_ns is None, -most_ns


def gain_ns(claim: Claim, traced: float) -> tuple[int, int] | None:
    """Return what a step without the profiler gains, at least and at most, as `candidates`."""
    if claim.gain is None:
        return None
    factor = 1.0 if claim.basis is not None and claim.basis.is_unprofiled else traced
    return round(claim.gain[0] / factor), round(claim.gain[1] / factor)


def fitting(
    every: Sequence[Candidate], step_ns: float, most_arms: int
) -> tuple[Sequence[Candidate], Sequence[Candidate], Sequence[Candidate]]:
    """Return (those to try, at most `most_arms`; those that can gain nothing that matters; those beyond the time)."""
    least_ns = step_ns * THRESHOLD_PCT / 100
    may_gain = [each for each in every if each.predicted_ns is None or each.predicted_ns[1] >= least_ns]
    hopeless = [each for each in every if each not in may_gain]
    return may_gain[:most_arms], hopeless, may_gain[most_arms:]


def leads_left(claims: Iterable[Claim], toggles: Collection[str]) -> tuple[Claim, ...]:
    """Return the claims whose remedy gains something, and that none of these toggles answers."""
    others = (claim for claim in claims if not set(rule_of(claim).toggles) & set(toggles))
    return tuple(claim for claim in others if claim.gain is not None and claim.gain[1] > 0)
