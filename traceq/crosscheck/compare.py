"""What traceq, HTA and Perfetto's SQL engine say about one trace, each by its own reader, side by side.

A disagreement is explained only by a rule that predicts the other tool's number. HTA (Holistic Trace Analysis, the
package traceinsight) runs in a separate process, since importing it changes settings. Perfetto reads microseconds as
float64, which resolve a quarter of one at today's date: it is given the same events with the first one at zero, every
digit kept.
"""

from __future__ import annotations

import importlib.util
import json
import math
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from decimal import Decimal
from importlib.metadata import version
from itertools import chain, combinations
from pathlib import Path
from subprocess import CalledProcessError
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from traceq.facts.events.device_work import device_work
from traceq.facts.events.kernels import is_communication
from traceq.facts.events.name_patterns import matching
from traceq.frozen import frozen
from traceq.grouping import group
from traceq.intervals import intersect, measure, spans
from traceq.kineto.categories import category_names
from traceq.kineto.decompression import open_source
from traceq.model import Category, Trace
from traceq.units import Unit

_SYNCHRONIZE = re.compile(r"^(cuda|hip)\w*Synchronize$")


@dataclass(frozen=True, slots=True)
class Quantity:
    """A number that every tool counts for itself; times are in ns."""

    key: str
    title: str
    unit: Unit


QUANTITIES = (
    Quantity("kernels", "kernels", Unit.COUNT),
    Quantity("copies", "memory copies", Unit.COUNT),
    Quantity("memsets", "memsets", Unit.COUNT),
    Quantity("linked", "device work with its launch", Unit.COUNT),
    Quantity("span", "first to last device work", Unit.NS),
    Quantity("busy", "busy: any device work", Unit.NS),
    Quantity("idle", "idle: none", Unit.NS),
    Quantity("compute", "computes", Unit.NS),
    Quantity("hidden", "communication behind compute", Unit.PERCENT),
    Quantity("copying", "copies, summed", Unit.NS),
    Quantity("queue", "longest launch queue", Unit.COUNT),
    Quantity("synchronize", "calls to synchronize", Unit.COUNT),
)


@frozen(eq=False)
class Classes:
    """Class of every piece of device work: `computes`, `communicates` bool[D]; copies and memsets are neither."""

    computes: NDArray[np.bool_]
    communicates: NDArray[np.bool_]


def classes(trace: Trace) -> Classes:
    """Return the classes as traceq sees them."""
    work, communicates = device_work(trace), is_communication(trace)
    is_kernel = trace.events.category[work.rows] == Category.KERNEL
    return Classes(is_kernel & ~communicates, communicates)


def quantities(
    trace: Trace,
    has: NDArray[np.bool_] | None = None,
    of: Classes | None = None,
    queues: NDArray[np.bool_] | None = None,
) -> dict[str, float]:
    """Return each quantity by its key, as a tool counts it that does as traceq but for some rules.

    It `has` some rows of the trace, bool[N] of Events, puts device work into its own classes (`of`), and fills the
    launch queue by some calls, `queues` bool[N] of Events.
    """
    work, category = device_work(trace), trace.events.category
    of = of or classes(trace)
    has = np.ones(len(trace.events), np.bool_) if has is None else has
    chosen, linked = has[work.rows], has[work.rows] & work.linked & has[work.call]
    calls = trace.events.rows(Category.RUNTIME, Category.PROFILER)  # of the job, and those as the profiler stops

    def num(kind: Category) -> int:
        return int((chosen & (category[work.rows] == kind)).sum())

    def when(selected: NDArray[np.bool_]) -> NDArray[np.int64]:
        index = np.flatnonzero(chosen & selected)
        return spans(work.start[index], work.end[index])

    busy, compute, comm = when(chosen), when(of.computes), when(of.communicates)
    span = int(busy[-1, 1] - busy[0, 0]) if len(busy) else 0
    copies = np.flatnonzero(chosen & (category[work.rows] == Category.MEMCPY))
    return {
        "kernels": num(Category.KERNEL),
        "copies": num(Category.MEMCPY),
        "memsets": num(Category.MEMSET),
        "linked": int(linked.sum()),
        "span": span,
        "busy": measure(busy),
        "idle": span - measure(busy),
        "compute": measure(compute),
        "hidden": 100 * measure(intersect(compute, comm)) / measure(comm) if len(comm) else float("nan"),
        "copying": int((work.end - work.start)[copies].sum()),
        "queue": _longest_queue(trace, np.flatnonzero(linked if queues is None else linked & queues[work.call])),
        "synchronize": int(matching(trace.events, calls[has[calls]], _SYNCHRONIZE).sum()),
    }


def _longest_queue(trace: Trace, index: NDArray[np.int64]) -> int:
    """Return the most work of one stream that is launched and has not started."""
    work = device_work(trace)
    if len(index) == 0:
        return 0
    time = np.r_[trace.events.ts[work.call[index]], work.start[index]]
    change = np.repeat([1, -1], len(index))
    stream = np.tile(group([work.stream[index]]).group_ids, 2)
    order = np.lexsort((-change, time, stream))
    waiting = np.cumsum(change[order])  # every stream ends with none, so the next one begins with none
    return int(waiting.max())


@dataclass(frozen=True, slots=True)
class Opinion:
    """Numbers of one tool by the key of the quantity, times in ns; a quantity that it does not tell is absent.

    `failed`: why it has no numbers, or lacks some.
    """

    tool: str
    numbers: Mapping[str, float] = field(default_factory=dict)
    failed: tuple[str, ...] = ()


_PIECE = 1 << 24
_START_S = 600  # it reads the trace first

_FAULT = re.compile(r"^[A-Za-z][\w.]*: .*", re.MULTILINE)
"""First line of what ends a traceback, which may have further ones."""

_TIMES = {quantity.key for quantity in QUANTITIES if quantity.unit is Unit.NS}


@dataclass(frozen=True, slots=True)
class HtaOpinion(Opinion):
    """`device_numbers`: what it says once rows of the host are taken out; None where it took none for device work.

    `num_of_host`: how many it took; `kinds`: its class of each kernel by name (COMPUTATION, COMMUNICATION, ...);
    `launches`: names of the calls that fill its launch queue.
    """

    device_numbers: Mapping[str, float] | None = None
    num_of_host: int = 0
    kinds: Mapping[str, str] = field(default_factory=dict)
    launches: frozenset[str] = frozenset()


def ask_hta(path: Path) -> HtaOpinion:
    """Return what HTA says; without the package, or where it fails, that there is nothing and why."""
    if importlib.util.find_spec("hta") is None:
        return HtaOpinion("HTA", failed=("is not installed: pip install traceinsight",))
    command = [sys.executable, "-m", "traceq.crosscheck.hta_answers", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        fault = (_FAULT.findall(done.stderr) or [f"exit code {done.returncode}"])[-1]
        return HtaOpinion("HTA", failed=(f"cannot analyse this trace: {fault[:200]}",))
    answer = json.loads(done.stdout.splitlines()[-1])
    device = answer["device_numbers"]
    return HtaOpinion(
        tool=f"HTA {answer['version']}",
        numbers=_in_ns(answer["numbers"]),
        failed=tuple(f"fails at {question}: {reason}" for question, reason in answer["failed"].items()),
        device_numbers=None if device is None else _in_ns(device),
        num_of_host=answer["num_of_host"],
        kinds=answer["kinds"],
        launches=frozenset(answer["launches"]),
    )


def _in_ns(numbers: Mapping[str, float]) -> dict[str, float]:
    return {key: number * 1000 if key in _TIMES else number for key, number in numbers.items()}


def _of(*categories: Category) -> str:
    """Return the condition of SQL for slices of some categories."""
    return f"lower(category) in ({', '.join(map(repr, category_names(*categories)))})"


_MEMSET, _CALL = _of(Category.MEMSET), _of(Category.RUNTIME)
_COPY = f"({_of(Category.MEMCPY)} or ({_of(Category.KERNEL)} and name = 'dma_request'))"  # MTIA
_SYNC = f"({_of(Category.KERNEL)} and name in ('event_wait', 'event_record'))"  # MTIA
_DEVICE = f"({_of(Category.KERNEL, Category.MEMCPY, Category.MEMSET)} and not {_SYNC})"
_KERNEL = f"({_of(Category.KERNEL)} and not {_COPY} and not {_SYNC})"

_COUNTS = f"""
select ifnull(sum({_KERNEL}), 0) as kernels, ifnull(sum({_COPY}), 0) as copies,
  ifnull(sum({_MEMSET}), 0) as memsets, ifnull(max(ts + dur) - min(ts), 0) as span,
  ifnull(sum(iif({_COPY}, dur, 0)), 0) as copying
from slice where {_DEVICE}"""

_BUSY = f"""
select ifnull(sum(max(0, until - max(ts, coalesce(reached, ts)))), 0) as busy from (
  select ts, ts + dur as until,
    max(ts + dur) over (order by ts, dur rows between unbounded preceding and 1 preceding) as reached
  from slice where {_DEVICE})"""

_LAUNCHES = f"""
with call as (
  select min(ts) as called, extract_arg(arg_set_id, 'args.correlation') as correlation
  from slice where {_CALL} group by 2),
work as (
  select ts, extract_arg(arg_set_id, 'args.correlation') as correlation,
    extract_arg(arg_set_id, 'args.device') as device, extract_arg(arg_set_id, 'args.stream') as stream
  from slice where {_DEVICE}),
linked as (select * from work join call using (correlation)),
change as (
  select called as ts, 1 as num, device, stream from linked
  union all select ts, -1, device, stream from linked),
waiting as (
  select sum(num) over (partition by device, stream order by ts, num desc rows unbounded preceding) as queue
  from change)
select (select count(*) from linked) as linked, ifnull((select max(queue) from waiting), 0) as queue"""

_SYNCHRONIZE_CALLS = f"""
select count(*) as synchronize from slice
where {_CALL} and (name glob 'cuda*Synchronize' or name glob 'hip*Synchronize')"""

_KEPT = f"""
select ts, dur, case when {_KERNEL} then 0 when {_COPY} then 1 when {_MEMSET} then 2 else 3 end as kind
from slice where {_DEVICE} or {_CALL}"""
_DROPPED = "select value from stats where name = 'slice_drop_overlapping_complete_event'"


@dataclass(frozen=True, slots=True)
class PerfettoOpinion(Opinion):
    """`num_dropped`: slices that its statistics report as dropped, since they overlap another one of their track.

    `kept` int64[K, 3]: of the device work and calls that it kept the start in ns since the first event of the trace,
    the duration in ns, and the kind: 0 kernel, 1 copy, 2 memset, 3 call.
    """

    num_dropped: int = 0
    kept: NDArray[np.int64] = field(default_factory=lambda: np.empty((0, 3), np.int64))


def ask_perfetto(path: Path, binary: Path | None = None) -> PerfettoOpinion:
    """Return what the engine says; where it cannot be had or fails, that there is nothing and why.

    `binary` is Perfetto's trace_processor_shell; without one its package downloads it.
    """
    try:
        with _engine(path, binary) as engine:
            numbers: dict[str, float] = {}
            for sql in (_COUNTS, _BUSY, _LAUNCHES, _SYNCHRONIZE_CALLS):
                [row] = engine.query(sql)
                numbers |= {key: int(value) for key, value in vars(row).items()}
            numbers["idle"] = numbers["span"] - numbers["busy"]
            kept = np.array([(row.ts, row.dur, row.kind) for row in engine.query(_KEPT)], np.int64).reshape(-1, 3)
            num_dropped = sum(row.value for row in engine.query(_DROPPED))
    except CalledProcessError:
        why = "cannot be asked: its engine cannot be downloaded; give a trace_processor_shell (--trace-processor)"
        return PerfettoOpinion("Perfetto", failed=(why,))
    except Exception as error:  # noqa: BLE001 -- whatever keeps the engine from answering costs its column alone
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        return PerfettoOpinion("Perfetto", failed=(f"cannot be asked: {first[:200].rstrip('.')}",))
    return PerfettoOpinion(f"Perfetto {version('perfetto')}", numbers, (), num_dropped, kept)


@contextmanager
def _engine(path: Path, binary: Path | None) -> Iterator[Any]:
    from perfetto.trace_processor import TraceProcessor, TraceProcessorConfig

    with TemporaryDirectory(prefix="traceq-") as folder:
        rebased = Path(folder, "trace.json")
        rebased.write_bytes(_rebased(path))
        config = TraceProcessorConfig(bin_path=None if binary is None else str(binary), load_timeout=_START_S)
        with TraceProcessor(trace=str(rebased), config=config) as engine:
            yield engine


def _rebased(path: Path) -> bytes:
    """Return the events of a trace as JSON with the first complete one at zero."""
    with closing(open_source(path)) as source:
        pieces = iter(lambda: source.read(_PIECE), b"")
        whole = json.loads(b"".join(pieces), parse_float=Decimal)
    rows = whole if isinstance(whole, list) else whole["traceEvents"]
    first = min((row["ts"] for row in rows if row.get("ph") == "X"), default=0)
    moved = [row | {"ts": row["ts"] - first} if "ts" in row else row for row in rows]
    return msgspec.json.Encoder(decimal_format="number").encode({"traceEvents": moved})


_ROUNDING_NS, _ROUNDING_PCT = 2_000, 0.01
"""HTA counts in float64 microseconds, and rounds shares to a hundredth of a percent."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One tool's number; `reasons` are indices of `Crosscheck.reasons` that explain it where it is not traceq's.

    None as reasons: nothing explains it.
    """

    number: float | None
    agrees: bool = True
    reasons: tuple[int, ...] | None = ()

    def to_dict(self, reasons: tuple[str, ...]) -> dict[str, object]:
        """Return the answer for JSON, its reasons as sentences."""
        why = None if self.reasons is None else [reasons[index] for index in self.reasons]
        return {"number": _or_none(self.number), "agrees": self.agrees, "reasons": why}


@dataclass(frozen=True, slots=True)
class Row:
    """One quantity as each tool counts it."""

    quantity: Quantity
    ours: float
    hta: Answer
    perfetto: Answer


@dataclass(frozen=True, slots=True)
class Crosscheck:
    """All quantities, and the reasons for disagreements."""

    tools: tuple[str, str]
    rows: tuple[Row, ...]
    reasons: tuple[str, ...]
    failed: tuple[str, ...]

    @property
    def unexplained(self) -> list[str]:
        """Titles of quantities on which a tool disagrees without a reason."""
        return [row.quantity.title for row in self.rows if None in (row.hta.reasons, row.perfetto.reasons)]

    @property
    def summary(self) -> str:
        """How many numbers agree, in one sentence."""
        answers = [answer for row in self.rows for answer in (row.hta, row.perfetto) if answer.number is not None]
        num_agree = sum(answer.agrees for answer in answers)
        num_open = sum(answer.reasons is None for answer in answers)
        if not answers:
            return "Nobody else was asked."
        explained = len(answers) - num_agree - num_open
        rest = [
            f"{explained} differ for the reasons above" * bool(explained),
            f"{num_open} unexplained" * bool(num_open),
        ]
        return ", ".join([f"{num_agree} of {len(answers)} numbers agree", *filter(None, rest)]) + "."

    def to_dict(self) -> dict[str, object]:
        """Return all of it for JSON; times in ns, null where a tool does not tell a number."""
        return {
            "tools": ["traceq", *self.tools],
            "quantities": [
                {
                    "quantity": row.quantity.key,
                    "traceq": _or_none(row.ours),
                    "hta": row.hta.to_dict(self.reasons),
                    "perfetto": row.perfetto.to_dict(self.reasons),
                }
                for row in self.rows
            ],
            "failed": list(self.failed),
            "unexplained": self.unexplained,
        }


def _or_none(number: float | None) -> float | None:
    return None if number is None or math.isnan(number) else number


_Rules = Mapping[str, str]
"""What a tool does otherwise, each as one sentence."""


def crosscheck(trace: Trace, path: Path, binary: Path | None = None) -> Crosscheck:
    """Return what traceq, HTA and Perfetto say about the trace in a file; `binary` is Perfetto's engine."""
    ours, hta, perfetto = quantities(trace), ask_hta(path), ask_perfetto(path, binary)
    reasons: list[str] = []
    by_hta = _explained(ours, hta, *_hta_rules(trace, hta), reasons)
    by_perfetto = _explained(ours, perfetto, *_perfetto_rules(trace, perfetto), reasons)
    rows = [Row(of, ours[of.key], by_hta[of.key], by_perfetto[of.key]) for of in QUANTITIES]
    failed = [f"{opinion.tool} {why}" for opinion in (hta, perfetto) for why in opinion.failed]
    return Crosscheck((hta.tool, perfetto.tool), tuple(rows), tuple(reasons), tuple(failed))


_Predict = Callable[[frozenset[str]], tuple[Mapping[str, float], Mapping[str, float]]]
"""(our numbers, theirs) where traceq does as the tool by some rules, and the tool as traceq by others."""


def _explained(
    ours: Mapping[str, float], opinion: Opinion, rules: _Rules, predict: _Predict, reasons: list[str]
) -> dict[str, Answer]:
    """Return each quantity's answer with the fewest rules that explain it; their sentences join the reasons."""
    answers = {of.key: Answer(opinion.numbers.get(of.key)) for of in QUANTITIES}
    open_keys = {of for of in QUANTITIES if not _agree(of, ours[of.key], opinion.numbers.get(of.key))}
    for chosen in chain.from_iterable(combinations(rules, size) for size in range(1, len(rules) + 1)):
        if not open_keys:
            break
        of_traceq, of_tool = predict(frozenset(chosen))
        for of in sorted(open_keys, key=QUANTITIES.index):
            if _agree(of, of_traceq[of.key], of_tool.get(of.key)):
                open_keys.discard(of)
                why = tuple(_index(reasons, rules[key]) for key in chosen)
                answers[of.key] = Answer(opinion.numbers[of.key], False, why)
    for of in open_keys:
        answers[of.key] = Answer(opinion.numbers.get(of.key), False, None)
    return answers


def _index(reasons: list[str], sentence: str) -> int:
    if sentence not in reasons:
        reasons.append(sentence)
    return reasons.index(sentence)


def _agree(of: Quantity, ours: float, theirs: float | None) -> bool:
    if theirs is None or (math.isnan(ours) and (math.isnan(theirs) or theirs == 0)):
        return True
    within = {Unit.NS: _ROUNDING_NS, Unit.PERCENT: _ROUNDING_PCT}.get(of.unit, 0)
    return abs(ours - theirs) <= within


def _hta_rules(trace: Trace, hta: HtaOpinion) -> tuple[_Rules, _Predict]:
    work, rules = device_work(trace), dict[str, str]()
    unnamed = work.rows[trace.events.stream[work.rows] < 0]
    if len(unnamed):
        rules["stream"] = f"HTA leaves out {len(unnamed):,} device rows that name no stream"
    if num := int((~work.linked).sum()):
        rules["launched"] = f"HTA leaves out {num:,} device rows whose launch the trace does not have"
    if hta.device_numbers is not None:
        rules["host"] = f"HTA counts {hta.num_of_host:,} rows of the host, which name a stream, as work of it"
    of_hta = _hta_classes(trace, hta)
    of_traceq = classes(trace)
    differ = (of_traceq.computes != of_hta.computes) | (of_traceq.communicates != of_hta.communicates)
    if hta.kinds and differ.any():
        name = trace.events.strings[trace.events.name[work.rows[np.flatnonzero(differ)[0]]]]
        rules["class"] = f"HTA puts {int(differ.sum()):,} kernels into another class, like {name[:60]}"

    queues = np.array([name in hta.launches for name in trace.events.strings], np.bool_)[trace.events.name]
    calls = work.call[work.linked]
    if (others := np.flatnonzero(~queues[calls])).size:
        name = trace.events.strings[trace.events.name[calls[others[0]]]]
        rules["queue"] = f"HTA's launch queue is without {len(others):,} rows launched by other calls, like {name}"

    def predict(chosen: frozenset[str]) -> tuple[Mapping[str, float], Mapping[str, float]]:
        has = np.ones(len(trace.events), np.bool_)
        has[work.rows[~work.linked]] = "launched" not in chosen
        has[unnamed] &= "stream" not in chosen
        of, only = of_hta if "class" in chosen else of_traceq, queues if "queue" in chosen else None
        as_hta = quantities(trace, has, of, only)
        return as_hta, (hta.device_numbers or hta.numbers) if "host" in chosen else hta.numbers

    return rules, predict


def _hta_classes(trace: Trace, hta: HtaOpinion) -> Classes:
    """Return the classes as HTA sees them; kernels that it does not know stay as traceq sees them."""
    work, of_traceq = device_work(trace), classes(trace)
    names = trace.events.name[work.rows]
    kinds = np.full(len(trace.events.strings), "", dtype="U16")
    for number in np.flatnonzero(np.bincount(names, minlength=len(kinds))).tolist():
        kinds[number] = hta.kinds.get(trace.events.strings[number], "")
    kind, is_kernel = kinds[names], of_traceq.computes | of_traceq.communicates

    def of_kind(name: str, else_own: NDArray[np.bool_]) -> NDArray[np.bool_]:
        return is_kernel & np.where(kind == "", else_own, kind == name)

    return Classes(of_kind("COMPUTATION", of_traceq.computes), of_kind("COMMUNICATION", of_traceq.communicates))


def _perfetto_rules(trace: Trace, perfetto: PerfettoOpinion) -> tuple[_Rules, _Predict]:
    num = perfetto.num_dropped
    sentence = f"Perfetto drops {num:,} slices that overlap another one of their track in part, and says so"
    rules = {"dropped": sentence} if num else {}

    def predict(_: frozenset[str]) -> tuple[Mapping[str, float], Mapping[str, float]]:
        has = _kept(trace, perfetto)
        return quantities(trace, has if (~has).sum() <= num else None), perfetto.numbers

    return rules, predict


def _kept(trace: Trace, perfetto: PerfettoOpinion) -> NDArray[np.bool_]:
    """Return bool[N]: whether Perfetto kept each row of Events; other rows than device work and calls count as kept."""
    events, parts = trace.events, []
    for kind, category in enumerate((Category.KERNEL, Category.MEMCPY, Category.MEMSET, Category.RUNTIME)):
        rows = events.rows(category)
        parts.append(
            np.column_stack([events.ts[rows] - events.ts.min(), events.dur[rows], np.full(len(rows), kind), rows])
        )
    ours, theirs = np.concatenate(parts), perfetto.kept
    both = np.concatenate([theirs, ours[:, :3]])
    group_ids = group([both[:, 0], both[:, 1], both[:, 2]]).group_ids
    num_kept = np.bincount(group_ids[: len(theirs)], minlength=group_ids.max(initial=0) + 1)
    of_ours = group_ids[len(theirs) :]
    order = np.argsort(of_ours, kind="stable")
    first = np.searchsorted(of_ours[order], of_ours[order], "left")
    is_kept = np.arange(len(order)) - first < num_kept[of_ours[order]]  # as many of like rows as Perfetto has
    has = np.ones(len(events), np.bool_)
    has[ours[order, 3]] = is_kept
    return has
