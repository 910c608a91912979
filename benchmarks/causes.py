"""Validate the causes of `traceq diff` on real traces with one known change each.

    python benchmarks/causes.py --traces TRACES --tools TOOLS --work DIR
    python benchmarks/causes.py ... --sources ddp-a100 --kinds 'item|sleep'

For each case: the true delta, what its causes give to the change, the largest false cause, and what has no recorded
cause ("residual"). A third of the sources is set aside and only measured with --held-out, so that the engine can be
tuned on the others. Cases are made once and kept in DIR (1 GB).

A case is ok if the change gets its delta within 2 % and no other cause exceeds 1 % of it; differences below the grain
of the simulator (1 us, and 1.6 us of host time per added sync) do not count. A change that costs nothing has no cause
above the grain; where nothing changed there is no cause, and where code is rewritten that takes as long none above
0.5 % of the step; fused kernels get their delta within 3 %; three changes at once get their Shapley values within 5 %
of the delta.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from itertools import combinations
from pathlib import Path

from known_changes.cases import JOBS, SOURCES, Cases, Truth, cpu_limit, held_out, kinds_of
from known_changes.recording import Change, Tools
from known_changes.rewriting import REWRITTEN, SHARES
from rich.console import Console
from rich.table import Table

import traceq
from traceq.compare.result import Cause, Diff

UNCOUNTED = ("pace", "minor", "jitter", "residual")
"""Kinds of causes that claim no change: neither given to it nor false."""

_OF_FUSED, _OF_REWRITTEN = 0.03, 0.005
"""How exact the cause of fused kernels is, in parts of it, and the largest cause of a rewriting, in parts of a step."""

UNSUITABLE = "unsuitable"
"""Note of a case that could not be made."""

_HEADING = (
    f"{'source':36} {'kind':13}      {'true ms':>10} {'given':>10} {'false':>10} {'residual':>10}  largest false cause"
)
_RANK = re.compile(r"^ranks? ([\d, ]+): ")
_NAMES = re.compile(r" > | replaced by | in | \(and \d+ more\)")
_MS = 1_000_000


@dataclass(frozen=True, slots=True)
class Score:
    """What the causes of one case say, in ms per step; `error` where there is no result."""

    source: str
    kind: str
    delta_ms: float = 0.0
    given_ms: float = 0.0
    false_ms: float = 0.0
    false_name: str = ""
    residual_ms: float = 0.0
    step_ms: float = 0.0
    ok: bool = False
    note: str = ""
    error: str = ""
    cpu_s: float = 0.0


# ---- is a cause the change? -----------------------------------------------------------------------------------------


def is_the_change(cause: Cause, truth: Truth) -> bool:
    """Return whether a cause names one of the changes of a case."""
    return any(names_change(cause, change) for change in truth.changes)


def names_change(cause: Cause, change: Change) -> bool:
    """Return whether a cause names a change: by kind of cause, op, family of kernels and rank, where it says one."""
    rank = _RANK.match(cause.name)
    if rank and change.rank is not None and str(change.rank) not in rank[1].split(", "):
        return False
    text = _RANK.sub("", cause.name)
    parts = {part.strip() for part in (*_NAMES.split(text), cause.self_op) if part}
    match change.kind:
        case "sync":
            return _names_sync(cause, text, parts, change)
        case "host":
            between_ops = "" in change.names and not parts & set(change.ops)
            return cause.kind == "host" and (between_ops or bool(parts & set(change.names)))
        case "kernel":
            op = text.partition(" > ")[0] if " > " in text else ""
            return cause.kind == "kernel" and bool(parts & set(change.names)) and op in ("", *change.ops)
        case "collective":
            return any(re.search(r"all_?gather|record_param_comms", part, re.IGNORECASE) for part in parts)
        case "replaced":
            return cause.kind in ("kernel", "memcpy", "host") and bool(parts & set(change.names))
    raise AssertionError(change.kind)


def _names_sync(cause: Cause, text: str, parts: set[str], change: Change) -> bool:
    """Return whether a cause is the added call, its copy, or the host time of the ops that make the call."""
    direction, *ops = change.names
    if cause.kind == "sync":
        of_direction, _, op = text.partition(" ")
        return of_direction == direction and (direction == "device" or op in ops)
    if cause.kind == "memcpy":
        return direction in text.lower() and bool(parts & set(ops))
    return cause.kind == "host" and cause.delta_num != 0 and bool(parts & set(ops))


# ---- one case -------------------------------------------------------------------------------------------------------


def measure(cases: Cases, kind: str, limit_s: float) -> Score:
    """Return the score of a case that is on disk."""
    case, start = cases.case(kind), time.process_time()
    truth = Truth.load(case)
    try:
        with cpu_limit(limit_s):
            score = _score(case, truth)
    except Exception as error:  # noqa: BLE001 - a diff that fails is a miss, whatever the error
        score = Score(cases.source, kind, error=f"{type(error).__name__}: {error}")
    return _with(score, cpu_s=round(time.process_time() - start, 2))


def _score(case: Path, truth: Truth) -> Score:
    diff = traceq.diff(case / "a", case / "b")
    if diff.traced is None:
        return Score(truth.source, truth.kind, error="the diff explains no traced step")
    delta_ms = true_delta_ms(diff, truth)
    rows = [cause for cause in diff.causes if cause.kind not in UNCOUNTED]
    false_name, false_ms = largest([cause for cause in rows if not is_the_change(cause, truth)])
    score = Score(
        truth.source,
        truth.kind,
        delta_ms,
        total_ms(cause for cause in rows if is_the_change(cause, truth)),
        false_ms,
        false_name,
        total_ms(cause for cause in diff.causes if cause.kind == "residual"),
        (diff.traced.a_ns + diff.traced.b_ns) / 2 / _MS,
    )
    unexplained_ms = (diff.traced.delta_ns - sum(cause.delta_ns for cause in diff.causes)) / _MS
    if abs(unexplained_ms) > 0.001:
        score = _with(score, note=f"causes lack {unexplained_ms:.3f} ms of the delta")
    grain_ms = grain_of(truth, diff.traced.num_a)
    match truth.kind:
        case "noise_aa":
            return _of_noise(score, rows)
        case "noise_item":
            return _of_item_in_noise(score, case)
        case "multi":
            return _of_three_changes(score, case, truth, rows, grain_ms)
        case "fused":
            return _with(score, ok=abs(score.given_ms - delta_ms) <= max(_OF_FUSED * abs(delta_ms), grain_ms))
        case kind if kind in REWRITTEN:
            return _with(score, ok=abs(largest(rows)[1]) <= _OF_REWRITTEN * score.step_ms)
    rewriting_ms = _OF_REWRITTEN * score.step_ms if truth.kind.rpartition("_")[2] in REWRITTEN else 0.0
    if abs(delta_ms) <= grain_ms:
        is_hidden = abs(largest(rows)[1]) <= max(grain_ms, rewriting_ms)
        return _with(score, ok=is_hidden, note=score.note or "hidden")
    return _with(score, ok=is_ok(score, grain_ms))


def true_delta_ms(diff: Diff, truth: Truth) -> float:
    """Return the delta of the mean step; in a job that of the changed rank if the diff explains one that it spares."""
    assert diff.traced is not None
    ranks = {change.rank for change in truth.changes}
    changed = next((rank.delta_ns for rank in diff.ranks if rank.rank in ranks), 0)
    is_spared = 2 * abs(diff.traced.delta_ns) < abs(changed)
    return (changed if is_spared else diff.traced.delta_ns) / _MS


def largest(causes: Sequence[Cause]) -> tuple[str, float]:
    """Return (name, ms) of the largest cause, be it one row or all rows of one name."""
    by_name: Counter[str] = Counter()
    for cause in causes:
        by_name[f"{cause.kind} {cause.path}"] += cause.delta_ns
    rows = [(f"{cause.kind} {cause.path}", cause.delta_ns) for cause in causes]
    name, ns = max((*rows, *by_name.items()), key=lambda entry: abs(entry[1]), default=("", 0))
    return name, ns / _MS


def total_ms(causes: Iterable[Cause]) -> float:
    """Return the sum of causes."""
    return sum(cause.delta_ns for cause in causes) / _MS


def grain_of(truth: Truth, num_steps: int) -> float:
    """Return how exact a case is in ms: an added sync has 1.4 us of host time outside its ops in the simulator."""
    num_syncs = sum(change.num for change in truth.changes if change.kind == "sync")
    return 0.001 + 0.0016 * num_syncs / max(1, num_steps)


def is_ok(score: Score, grain_ms: float) -> bool:
    """Return whether 98 % of the delta are given to the change, and at most 1 % to any other cause."""
    size_ms = abs(score.delta_ms)
    given = abs(score.given_ms - score.delta_ms) <= max(0.02 * size_ms, grain_ms)
    return given and abs(score.false_ms) <= max(0.01 * size_ms, grain_ms)


def _of_noise(score: Score, rows: Sequence[Cause]) -> Score:
    large = sum(abs(cause.delta_ns) > 0.001 * score.step_ms * _MS for cause in rows)
    return _with(score, ok=not rows, note=f"{len(rows)} causes, {large} above .1 % of the step")


def _of_item_in_noise(score: Score, case: Path) -> Score:
    """Compare with what the sync costs under the same noise."""
    true_ms, delta_ms = _delta_ms(case / "without", case / "b"), abs(score.delta_ms)
    is_given = abs(score.given_ms - true_ms) <= max(0.02 * abs(true_ms), 0.005 * score.step_ms)
    is_clean = abs(score.false_ms) <= max(0.01 * delta_ms, 0.001 * score.step_ms)
    return _with(score, ok=is_given and is_clean, note=f"the sync costs {true_ms:.3f}")


def _of_three_changes(score: Score, case: Path, truth: Truth, rows: Sequence[Cause], grain_ms: float) -> Score:
    """Compare each change with its Shapley value over the worlds that hold some of the changes."""
    cost_ms = {str(mask): _delta_ms(case / "a", case / str(mask)) for mask in range(1, 7)}
    cost_ms |= {"0": 0.0, "7": score.delta_ms}
    is_close, notes = True, []
    for number, change in enumerate(truth.changes):
        given_ms = total_ms(cause for cause in rows if names_change(cause, change))
        value_ms = shapley(cost_ms, number)
        is_close &= abs(given_ms - value_ms) <= max(0.05 * abs(score.delta_ms), 0.002)
        notes.append(f"{change.kind} {given_ms:.3f} of {value_ms:.3f}")
    return _with(score, ok=is_close and is_ok(score, grain_ms), note=", ".join(notes))


def shapley(cost_ms: dict[str, float], player: int, num_players: int = 3) -> float:
    """Return the Shapley value of one change, from the cost of each set of changes by its bits."""
    others = [bit for bit in range(num_players) if bit != player]
    value_ms = 0.0
    for size in range(num_players):
        weight = 1 / num_players / math.comb(num_players - 1, size)
        for chosen in combinations(others, size):
            mask = sum(1 << bit for bit in chosen)
            value_ms += weight * (cost_ms[str(mask | 1 << player)] - cost_ms[str(mask)])
    return value_ms


def _delta_ms(a: Path, b: Path) -> float:
    traced = traceq.diff(a, b).traced
    assert traced is not None
    return traced.delta_ns / _MS


def _with(score: Score, **changes: object) -> Score:
    return Score(**{**asdict(score), **changes})


# ---- all cases ------------------------------------------------------------------------------------------------------


def run_source(source: str, options: argparse.Namespace) -> list[Score]:
    """Make the cases of one source, and measure them unless they are set aside."""
    cases = Cases(Tools.load(options.tools, options.traces), source, options.work)
    scores = []
    for kind in kinds_of(source):
        if not re.fullmatch(options.kinds, kind):
            continue
        truth = cases.ensure(kind, options.limit)
        if truth.unsuitable:
            scores.append(Score(source, kind, note=UNSUITABLE, error=truth.unsuitable))
        elif not options.generate_only and (options.held_out or source not in held_out()):
            scores.append(measure(cases, kind, options.limit))
    return scores


def main() -> None:
    """Print the scores as sources are done, and the summary."""
    options, console = _options(), Console(width=150, highlight=False, markup=False)
    aside = held_out()
    sources = [*(source for source in (*SOURCES, *JOBS) if source not in aside), *aside]
    sources = [source for source in sources if re.search(options.sources, source)]
    console.print("set aside:", ", ".join(aside), soft_wrap=True)
    console.print(_HEADING)
    scores: list[Score] = []
    for of_source in _results(sources, options):
        scores += of_source
        for score in of_source:
            if score.note != UNSUITABLE:
                console.print(_line(score), soft_wrap=True)
        if options.json:
            options.json.write_text(json.dumps([asdict(score) for score in scores], indent=1), encoding="utf-8")
    _print_unsuitable([score for score in scores if score.note == UNSUITABLE], console)
    measured = [score for score in scores if score.note != UNSUITABLE]
    for title, held in (("tuning sources", False), ("sources set aside", True)):
        if some := [score for score in measured if (score.source in aside) == held]:
            console.print(_summary(title, some))
            for what in dict.fromkeys(_what_changes(score.kind) for score in some):
                alike = [score for score in some if _what_changes(score.kind) == what]
                console.print(f"{what}: {_verdict(what, alike)}", soft_wrap=True)


def _results(sources: Sequence[str], options: argparse.Namespace) -> Iterator[list[Score]]:
    one = partial(run_source, options=options)
    if options.jobs == 1:
        yield from map(one, sources)
        return
    with ProcessPoolExecutor(options.jobs) as pool:
        yield from pool.map(one, sources)


def _print_unsuitable(scores: Sequence[Score], console: Console) -> None:
    sources: dict[tuple[str, str], list[str]] = {}
    for score in scores:
        sources.setdefault((score.kind, score.error), []).append(score.source)
    for (kind, reason), names in sources.items():
        console.print(f"no case {kind} for {len(names)} sources: {reason} ({', '.join(names)})", soft_wrap=True)


def _line(score: Score) -> str:
    head = f"{score.source:36} {score.kind:13}"
    if score.error:
        return f"{head} miss {score.error}"
    numbers = f"{score.delta_ms:10.4f} {score.given_ms:10.4f} {score.false_ms:+10.4f} {score.residual_ms:+10.4f}"
    text = f"{head} {'ok' if score.ok else 'miss':4} {numbers}  {score.false_name[:44]}"
    return f"{text} [{score.note}]" if score.note else text


def _summary(title: str, scores: Sequence[Score]) -> Table:
    table = Table(title=title, title_justify="left", box=None, padding=(0, 2, 0, 0))
    for heading in ("kind", "cases", "ok", "missed", "median CPU s"):
        table.add_column(heading, justify="left" if heading in ("kind", "missed") else "right")
    for kind in dict.fromkeys(score.kind for score in scores):
        some = [score for score in scores if score.kind == kind]
        missed = Counter(score.source.split("/")[0] for score in some if not score.ok)
        cpu_s = sorted(score.cpu_s for score in some)[len(some) // 2]
        families = ", ".join(f"{name} {num}" for name, num in missed.items())
        table.add_row(kind, str(len(some)), str(len(some) - missed.total()), families, f"{cpu_s:.1f}")
    return table


def _what_changes(kind: str) -> str:
    """Return what a kind of case changes: those that change alike are counted together."""
    if kind == "fused":
        return "kernels that are one"
    if kind in REWRITTEN:
        return "an op that is three, a module that is two, ops in another order"
    if kind.rpartition("_")[2] in REWRITTEN:
        return "one change, and such rewriting"
    if kind.rpartition("_")[2] in map(str, SHARES):
        return "one change, or none, and other names"
    return "several changes, or noise" if kind.startswith(("multi", "noise")) else "one change"


def _verdict(what: str, scores: Sequence[Score]) -> str:
    bar = "at least 98 % on the change, no false cause above 1 %"
    if what == _what_changes("fused"):
        bar = f"at least {100 - 100 * _OF_FUSED:g} % on the change"
    elif what in map(_what_changes, REWRITTEN):
        bar = f"no cause above {100 * _OF_REWRITTEN:g} % of the step"
    return f"{sum(score.ok for score in scores)} of {len(scores)} cases: {bar}"


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--traces", type=Path, required=True, help="folder of recorded traces")
    parser.add_argument("--tools", type=Path, required=True, help="folder of the simulator")
    parser.add_argument("--work", type=Path, required=True, help="where cases are kept")
    parser.add_argument("--sources", default="", metavar="REGEX")
    parser.add_argument("--kinds", default=".*", metavar="REGEX")
    parser.add_argument("--held-out", action="store_true", help="measure the sources that are set aside, too")
    parser.add_argument("--generate-only", action="store_true")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--limit", type=float, default=600, help="CPU seconds for making or measuring a case")
    parser.add_argument("--json", type=Path, metavar="OUT", help="write the scores")
    return parser.parse_args()


if __name__ == "__main__":
    main()
