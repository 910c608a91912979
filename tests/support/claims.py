"""What a sheet claims, walked: measures of claims found again in tables, and tables that agree with each other.

Each function yields sentences, one per contradiction.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterator
from math import prod
from typing import Any

from traceq.claims.claim import AT_MOST, BY_JOB_REPLAY, BY_REPLAY, Claim
from traceq.claims.saying import text_of
from traceq.facts.stalls.syncs import SYNC_KINDS
from traceq.report import Sheet, Table
from traceq.units import Unit

__all__ = ["FOUND_IN", "contradictions"]

Row = dict[str, Any]
SAVED = 0.001
"""Part of a step from which a sync that saves it is costly (docs/method.md)."""


def contradictions(sheet: Sheet) -> Iterator[str]:
    """Every contradiction of a sheet of all analyses."""
    for finding in sheet.findings:
        yield from of_finding(sheet, finding)
        yield from of_savings(finding)
        yield from of_basis(sheet, finding)
    if [finding.severity == "low" for finding in sheet.findings if finding.ns] != sorted(
        finding.severity == "low" for finding in sheet.findings if finding.ns
    ):
        yield "a finding that saves nothing stands before one that does"
    for report in sheet.reports:
        for view in report.views:
            yield from of_view(view)
    yield from of_labels(sheet)
    yield from of_late_savings(sheet)
    yield from of_ranks(sheet)
    yield from of_times(sheet)


def of_finding(sheet: Sheet, claim: Claim) -> Iterator[str]:
    """Its time is that of the table which it is about, and its share of a step is one of the step."""
    expected = FOUND_IN[claim.code](sheet, claim)
    if not expected - 1 <= claim.ns <= expected + 1:
        yield f"{claim.code}: {claim.ns} ns, its table {expected:.0f}: {text_of(claim)}"
    share, ns = claim.measures.get("share_pct"), time_measure(claim)
    if share is None or ns is None:
        return
    if claim.basis is not None and claim.basis.is_unprofiled:
        step_ns = [row["step_ns"] for row in step_profiles(sheet)]
    elif claim.code in ("busy_machine", "contended_cores"):
        (row,) = (row for row in rows_of(sheet, "core_use") if row["process"] == "training")
        step_ns = [100 * row["cpu_ns"] / row["busy_pct"]]
    else:
        of_ranks = recurring_means(sheet).values()
        step_ns = [*of_ranks, sum(of_ranks) / len(of_ranks), *step_means(sheet).values()]
    if not any(abs(100 * ns / each - float(share)) <= 0.01 + 0.001 * float(share) for each in step_ns):
        yield f"{claim.code}: {ns} ns are not {share} % of a step of {step_ns}: {text_of(claim)}"


def time_measure(claim: Claim) -> float | None:
    """The measure whose share of the step a claim has."""
    for name in ("wait_ns", "time_ns", "takes_ns", "compiling_ns", "idle_ns", "outside_ns"):
        if (value := claim.measures.get(name)) is not None:
            return float(value)
    return None


def of_savings(claim: Claim) -> Iterator[str]:
    """A gain is a range, and of what its own time bounds no more than that."""
    if claim.gain is None:
        return
    least, most = claim.gain
    if not 0 <= least <= most or (claim.gain_by == AT_MOST and most > claim.ns + 1):
        yield f"{claim.code}: gains {claim.gain} by {claim.gain_by}: {text_of(claim)}"


def of_basis(sheet: Sheet, claim: Claim) -> Iterator[str]:
    """The traced steps that it rests on are those that a rank counts, or that all ranks do; collectives are of all."""
    basis, num_steps = claim.basis, {len(steps) for steps in counted(sheet).values()}
    if claim.code == "strategy":
        num_steps = {sum(row["rank"] == rank for row in rows_of(sheet, "steps")) for rank in counted(sheet)}
    if basis is None:
        yield f"{claim.code}: no basis: {text_of(claim)}"
    elif not basis.is_unprofiled and basis.num_steps > min(num_steps) and basis.num_steps not in num_steps:
        yield f"{claim.code}: {basis.num_steps} traced steps, ranks count {num_steps}: {text_of(claim)}"


def of_late_savings(sheet: Sheet) -> Iterator[str]:
    """A sync that saves less than its rank waits for others, beyond what the last one waits, shortens no job."""
    waits = {
        row["rank"]: row["wait_ns"] / row["num_steps"] for row in rows_of(sheet, "ranks") if row["wait_ns"] is not None
    }
    for claim in sheet.findings:
        if claim.code != "costly_sync" or claim.subject.rank is None or claim.gain_by == BY_JOB_REPLAY:
            continue  # the replay of all ranks says what the job gains (tests/analysis/test_job_gain.py)
        slack = waits.get(claim.subject.rank, 0) - min(waits.values(), default=0)
        if abs(slack - claim.ns) > 2 and (slack > claim.ns) != (claim.gain == (0, 0)):
            yield f"costly_sync: {slack:.0f} ns of slack: {text_of(claim)}"


def of_view(view: Table) -> Iterator[str]:
    """A total is the sum of its column; shares follow the times beside them, and are at most 100 % together."""
    keys = [column.key for column in view.columns]
    rows = [dict(zip(keys, row, strict=True)) for row in view.rows]
    parts, totals = rows[:-1], rows[-1:]
    if rows and rows[-1][keys[0]] == "total":
        for key in (column.key for column in view.columns if column.unit in (Unit.NS, Unit.COUNT)):
            values = [row[key] or 0 for row in parts]
            is_sum = totals[0][key] is not None and key not in ("median_ns", "p95_ns")
            if is_sum and abs(sum(values) - totals[0][key]) > len(values):
                yield f"{view.title}: {key}: {sum(values)} in total, {totals[0][key]} said"
    else:
        parts = rows
    if view.key in ("memcpy", "modules") or "share" not in keys:
        return  # the part of a copy that kernels hide; a module's part holds those of its children
    if sum(row["share"] or 0 for row in parts) > 100.01:
        yield f"{view.title}: shares exceed 100 %"
    beside = [key for key in ("step_ns", "total", "mean_ns", "self_ns", "gpu_ns", "host_ns") if key in keys]
    wholes = [100 * row[beside[0]] / row["share"] for row in parts if row["share"]]
    if wholes and max(wholes) - min(wholes) > 0.01 * max(wholes) + 1000:
        yield f"{view.title}: shares are of different wholes: {wholes}"


def of_labels(sheet: Sheet) -> Iterator[str]:
    """A sync is costly exactly if replay saves time without it, and is a finding only as what its label says."""
    step_ns, syncs = step_means(sheet), rows_of(sheet, "syncs")
    for row in syncs:
        if (row["replay_ns"] is None) != (row["label"] == "unknown"):
            yield f"syncs: {row['label']}, saves {row['replay_ns']}: {row['key']}"
        row["replay_ns"] = row["replay_ns"] or 0
        is_saving = row["replay_ns"] > 0 and row["replay_ns"] >= SAVED * step_ns[row["rank"]]
        if (row["label"] == "costly") != is_saving:
            yield f"syncs: {row['label']}, saves {row['replay_ns']}: {row['key']}"
        if not 0 <= row["replay_ns"] <= row["blocked_ns"]:
            yield f"syncs: saves {row['replay_ns']} of {row['blocked_ns']}: {row['key']}"
    for finding in sheet.findings:
        if finding.code in ("costly_sync", "costly_allocation", "free_sync"):
            labels = {row["label"] for row in syncs if row["key"] == finding.key and row["replay_ns"] == finding.ns}
            if ("costly" in labels) != finding.code.startswith("costly"):
                yield f"{finding.code}: labels {labels}: {text_of(finding)}"
    for view in sheet.report("syncs").views:
        if any("cost" in column.heading for column in view.columns):
            yield f"{view.title}: a second cost"
    replayed: dict[int, dict[str, int]] = defaultdict(dict)
    for row in rows_of(sheet, "replay"):
        replayed[row["rank"]][row["removed"]] = row["saved_ns"]
        if row["removed"] != "nothing" and row["saved_ns"] < 0:
            yield f"replay: {row}"
    for rank, saved in replayed.items():
        kinds = {name: ns for name, ns in saved.items() if name.endswith(" syncs") and name != "all syncs"}
        if kinds and saved.get("all syncs", max(kinds.values())) < max(kinds.values()) - 1:
            yield f"replay: rank {rank} saves less without all syncs than without one kind: {saved}"
        of_kind: dict[str, int] = defaultdict(int)
        for row in syncs:
            if row["rank"] == rank:
                of_kind[f"{row['kind']} syncs"] = max(of_kind[f"{row['kind']} syncs"], row["replay_ns"])
        for name, ns in of_kind.items():
            if ns > kinds.get(name, 0) + 1:
                yield f"syncs: rank {rank}: a row saves {ns}, its kind {kinds.get(name)}: {name}"


def of_ranks(sheet: Sheet) -> Iterator[str]:
    """Ranks are balanced if and only if no finding names one, and waits are parts of the steps."""
    rows = rows_of(sheet, "ranks")
    named = any(finding.code == "straggler" for finding in sheet.findings)
    verdicts = {row["verdict"] for row in rows if row["verdict"]}
    if verdicts and not verdicts & {"irregular", "undecided"} and named == ("balanced" in verdicts):
        yield f"ranks: {verdicts}, and a straggler {'is' if named else 'is not'} found"
    for row in rows:
        if row["wait_ns"] is not None and not 0 <= row["exposed_wait_ns"] <= row["wait_ns"]:
            yield f"ranks: exposed waits exceed waits: {row}"
    caused = sum(row["caused_ns"] or 0 for row in rows)
    waited = sum(row["wait_ns"] or 0 for row in rows)
    for row in rows:
        by_cause = [each for each in rows_of(sheet, "caused_waits") if each["rank"] == row["rank"]]
        if abs(sum(each["caused_ns"] for each in by_cause) - (row["caused_ns"] or 0)) > len(by_cause) + 1:
            yield f"caused_waits: rank {row['rank']}: {by_cause} are not {row['caused_ns']}"
    if len(rows) == 2 and abs(caused - waited) > 2:
        yield f"ranks: of two ranks, waits caused {caused} are not the waits {waited}"


def of_times(sheet: Sheet) -> Iterator[str]:
    """Idle time, the critical path and the phases are those of the partition."""
    partition = cells(sheet)
    for rank, step_ns in step_means(sheet).items():
        categories = IDLE if has_device(sheet) else ("python", "dataload_wait")
        by_cause = [row["step_ns"] for row in rows_of(sheet, "idle") if row["rank"] == rank]
        idle_ns = sum(ns for (r, _, category), ns in partition.items() if r == rank and category in categories)
        if abs(sum(by_cause) - idle_ns) > len(by_cause) + 2:
            yield f"idle: rank {rank}: {sum(by_cause)} ns, the partition has {idle_ns:.0f}"
        whole = sum(ns for (r, *_), ns in partition.items() if r == rank)
        if abs(whole - step_ns) > 2:
            yield f"partition: rank {rank}: cells make {whole:.0f} ns, a step lasts {step_ns:.0f}"
        path = [row["step_ns"] for row in rows_of(sheet, "critical") if row["rank"] == rank]
        nothing = [row for row in rows_of(sheet, "replay") if (row["rank"], row["removed"]) == (rank, "nothing")]
        until_done_ns = nothing[0]["saved_ns"] + nothing[0]["step_ns"]  # of work launched in the step
        if path and abs(sum(path) - until_done_ns) > len(path) + 2:
            yield f"critical: rank {rank}: {sum(path)} ns, a replayed step lasts {until_done_ns}"
        if until_done_ns < step_ns - 2:
            yield f"replay: rank {rank}: a step lasts {until_done_ns}, {step_ns:.0f} in `steps`"
    for row in rows_of(sheet, "collectives"):
        if row["num_kernels"] and not 0 <= row["exposed_ns"] <= row["gpu_ns"]:
            yield f"collectives: exposed {row['exposed_ns']} of {row['gpu_ns']}: {row['key']}"
    for row in rows_of(sheet, "devices"):
        if not row["compute_ns"] <= row["busy_ns"] <= row["sum_ns"]:
            yield f"devices: {row}"
    for row in rows_of(sheet, "phases"):
        if not row["gpu_busy_ns"] <= row["gpu_sum_ns"]:
            yield f"phases: {row}"


IDLE = (
    "spin_wait",
    "sync_wait",
    "alloc_wait",
    "dataload_wait",
    "host_bound",
    "compiling",
    "once",
    "launch_latency",
    "tail",
)


def rows_of(sheet: Sheet, key: str) -> list[Row]:
    """The rows of a table."""
    return next(table.to_dicts() for report in sheet.reports for table in report.tables if table.key == key)


def step_profiles(sheet: Sheet) -> list[Row]:
    """The unprofiled step of each rank, its phases added up."""
    sums: dict[int, int] = defaultdict(int)
    for row in rows_of(sheet, "step_phases"):
        sums[row["rank"]] += row["mean_ns"]
    return [{"rank": rank, "step_ns": ns} for rank, ns in sums.items()]


def counted(sheet: Sheet) -> dict[int, list[int]]:
    """The counted steps of each rank: those that are not partial, or the only one."""
    steps: dict[int, list[Row]] = defaultdict(list)
    for row in rows_of(sheet, "steps"):
        steps[row["rank"]].append(row)
    return {
        rank: [row["step"] for row in rows if not row["partial"]] or [rows[-1]["step"]] for rank, rows in steps.items()
    }


def step_means(sheet: Sheet) -> dict[int, float]:
    """The mean counted step of each rank, ns."""
    ns: dict[int, list[int]] = defaultdict(list)
    for row in rows_of(sheet, "steps"):
        if row["step"] in counted(sheet)[row["rank"]]:
            ns[row["rank"]].append(row["window_ns"])
    return {rank: sum(values) / len(values) for rank, values in ns.items()}


def recurring_means(sheet: Sheet) -> dict[int, float]:
    """The same without what is once."""
    ns = step_means(sheet)
    for (rank, _, category), each in cells(sheet).items():
        ns[rank] -= each * (category == "once")
    return ns


def cells(sheet: Sheet) -> dict[tuple[int, str, str], float]:
    """The mean time of each (rank, phase, category) in a counted step, ns."""
    chosen, sums = counted(sheet), defaultdict[tuple[int, str, str], float](float)
    for row in rows_of(sheet, "partition"):
        if row["step"] in chosen[row["rank"]]:
            sums[row["rank"], row["phase"], row["category"]] += row["dur_ns"] / len(chosen[row["rank"]])
    return sums


def has_device(sheet: Sheet) -> bool:
    """Whether a device ran anything."""
    return sheet.source.device != "cpu" and bool(rows_of(sheet, "devices"))


def in_ns(time: str) -> float:
    """`1.19 s` in ns."""
    number, unit = time.replace(",", "").split()
    return float(number) * {"ns": 1, "us": 1e3, "ms": 1e6, "s": 1e9}[unit]


def by_category(sheet: Sheet, finding: Claim) -> float:
    named = {
        "device_bound": "compute",
        "cpu_bound": "cpu_compute",
        "python_bound": "python",
        "recompiles": "compiling",
    }.get(finding.code, finding.code)
    sums = sum(ns for (_, phase, category), ns in cells(sheet).items() if counted_as(phase, category) == named)
    return sums / len(step_means(sheet))


def counted_as(phase: str, category: str) -> str:
    """What a main thread without a device does in the loader is its wait for the next batch."""
    is_loading = phase in ("dataload", "dataload_wait") and category in ("cpu_compute", "python")
    return "dataload_wait" if is_loading else category


def by_host_op(sheet: Sheet, finding: Claim) -> float:
    """The self time of the op that the finding names, in all steps."""
    name = finding.subject.op
    num_steps = max(map(len, counted(sheet).values()))
    return sum(row["self_ns"] for row in rows_of(sheet, "host") if row["name"] == name) / num_steps


def by_window(sheet: Sheet, finding: Claim) -> float:
    """The step itself, which is no shorter."""
    return max(step_means(sheet).values())


def by_sync(sheet: Sheet, finding: Claim) -> float:
    rows = [row for row in rows_of(sheet, "syncs") if row["key"] == finding.key]
    return max(row["replay_ns"] for row in on_named_rank(rows, finding))


def by_replay(*removed: str) -> Callable[[Sheet, Claim], float]:
    def largest(sheet: Sheet, finding: Claim) -> float:
        rows = [row for row in rows_of(sheet, "replay") if row["removed"] in removed]
        return max(row["saved_ns"] for row in on_named_rank(rows, finding))

    return largest


def on_named_rank(rows: list[Row], finding: Claim) -> list[Row]:
    """The rows of the rank that a claim is about; of all ranks if it is about none."""
    return [row for row in rows if finding.subject.rank in (None, row["rank"])]


def by_loader(sheet: Sheet, finding: Claim) -> float:
    if finding.gain_by in (BY_REPLAY, BY_JOB_REPLAY):
        return by_replay("data loader")(sheet, finding)
    if finding.basis is not None and finding.basis.is_unprofiled:
        return max(row["mean_ns"] for row in rows_of(sheet, "step_phases") if row["phase"] == "dataload_wait")
    chosen, sums = counted(sheet), defaultdict[int, float](float)
    for row in rows_of(sheet, "dataload"):
        if row["step"] in chosen[row["rank"]]:
            sums[row["rank"]] += row["idle_ns"] / len(chosen[row["rank"]])
    return max(sums.values())


def by_other_phase(sheet: Sheet, finding: Claim) -> float:
    (row,) = (r for r in on_named_rank(rows_of(sheet, "step_phases"), finding) if r["phase"] == "other")
    return float(row["mean_ns"])


def at_most(expected: Callable[[Sheet, Claim], float]) -> Callable[[Sheet, Claim], float]:
    """What the table bounds: a finding's own time if that is less."""
    return lambda sheet, finding: min(finding.ns, expected(sheet, finding))


def by_launches(sheet: Sheet, finding: Claim) -> float:
    """Without gaps that are long or a sync's, at most what the device waits for the host."""
    sums: dict[int, float] = defaultdict(float)
    for (rank, _, category), ns in cells(sheet).items():
        sums[rank] += ns * (category == "host_bound")
    return max(sums.values())


def by_experts(sheet: Sheet, finding: Claim) -> float:
    ns = [row["dur_ns"] for row in rows_of(sheet, "experts")]
    return max(ns) - sum(ns) / len(ns)


def by_pipeline(sheet: Sheet, finding: Claim) -> float:
    """The largest mean over the ranks of a pipeline."""
    bubbles: dict[int, list[int]] = defaultdict(list)
    for row in rows_of(sheet, "pipeline"):
        bubbles[row["pipeline"]].append(row["warmup_ns"] + row["steady_ns"] + row["cooldown_ns"])
    return max(sum(each) / len(each) for each in bubbles.values())


def by_once(sheet: Sheet, finding: Claim) -> float:
    """All that the counted steps hold of it, on the rank with most."""
    sums = defaultdict[int, float](float)
    for (rank, _, category), ns in cells(sheet).items():
        sums[rank] += ns * len(counted(sheet)[rank]) * (category == "once")
    return max(sums.values())


def by_optimizer(sheet: Sheet, finding: Claim) -> float:
    chosen = counted(sheet)
    return max(
        row["window_ns"] / len(chosen[row["rank"]])
        for row in rows_of(sheet, "optimizers")
        if row["name"] == finding.measures["optimizer"] and row["implementation"] in ("foreach", "for-loop")
    )


def by_metrics(sheet: Sheet, finding: Claim) -> float:
    chosen, sums = counted(sheet), defaultdict[int, float](float)
    for row in rows_of(sheet, "metric_gathers"):
        sums[row["rank"]] += row["exposed_ns"] / len(chosen[row["rank"]])
    return max(sums.values())


def by_gradients(sheet: Sheet, finding: Claim) -> float:
    """The exposed time of all reductions of gradients, of which a finding has the repeated ones."""
    rows = [row for row in rows_of(sheet, "collectives") if row["role"] == "gradient_reduction"]
    return sum(row["exposed_ns"] for row in rows)


def by_stragglers(sheet: Sheet, finding: Claim) -> float:
    """The exposed part of the waits that the named ranks cause, so at most these."""
    rows = [row for row in rows_of(sheet, "ranks") if row["verdict"] == "straggler"]
    return sum(row["caused_ns"] / row["num_steps"] for row in rows)


def by_cluster(sheet: Sheet, finding: Claim) -> float:
    return next(row["late_ns"] for row in rows_of(sheet, "clusters") if row["key"] == finding.key)


def by_roof(sheet: Sheet, finding: Claim) -> float:
    """The time of the op in the phase that the finding names."""
    op, phase = finding.subject.op, finding.subject.phase
    ns: dict[int, float] = defaultdict(float)
    for row in rows_of(sheet, "efficiency_ops"):
        if (row["op"], row["phase"]) == (op, phase):
            ns[row["rank"]] += row["gpu_ns"] / len(counted(sheet)[row["rank"]])
    return max(ns.values())


def by_checks(sheet: Sheet, finding: Claim) -> float:
    """The ops with which autograd looks for NaN, and those inside of them, on the rank with most of them."""
    ns: dict[int, float] = defaultdict(float)
    names = {f"aten::{name}" for name in ("isnan", "ne", "_is_any_true", "any", "item", "_local_scalar_dense")}
    for row in rows_of(sheet, "host"):
        if row["name"] in names:
            ns[row["rank"]] += row["self_ns"] / len(counted(sheet)[row["rank"]])
    return max(ns.values())


def by_copies(sheet: Sheet, finding: Claim) -> float:
    """The kernels that are called copies of one type to another, on the rank with most of them."""
    ns: dict[int, float] = defaultdict(float)
    for row in rows_of(sheet, "kernels"):
        if "copy " in row["short"]:
            ns[row["rank"]] += row["gpu_ns"] / len(counted(sheet)[row["rank"]])
    return max(ns.values())


def by_attention(sheet: Sheet, finding: Claim) -> float:
    """The time of the ops that the finding names, of its scores."""
    phase, ops = finding.subject.phase, str(finding.measures["ops"])
    batch, height, width = (int(number.replace(",", "")) for number in str(finding.measures["scores"]).split(" x "))
    ns: dict[int, float] = defaultdict(float)
    for row in rows_of(sheet, "efficiency_ops"):
        if row["op"] not in ops or row["phase"] not in phase.split(" and ") or not row["shapes"]:
            continue
        *_, left, right = [shape for shape in json.loads(row["shapes"]) if shape] * 2
        given = [batch, height, width] == [*left[:-1], right[-1]] if len(left) == 3 else False
        scales = row["op"] not in ("aten::bmm", "aten::baddbmm") and prod(left) == batch * height * width
        if given or left == [batch, height, width] or scales:
            ns[row["rank"]] += row["gpu_ns"] / len(counted(sheet)[row["rank"]])
    return max(ns.values())


def by_core_use(sheet: Sheet, finding: Claim) -> float:
    """The waits for a core of the threads of the training process, of which a finding has the longest."""
    row = next(row for row in rows_of(sheet, "core_use") if row["process"] == "training")
    return float(row["core_wait_ns"])


def no_time(sheet: Sheet, finding: Claim) -> float:
    return 0


FOUND_IN: dict[str, Callable[[Sheet, Claim], float]] = {
    **dict.fromkeys(("host_bound", "exposed_comm", "exposed_wait", "exposed_transfer", "exposed_memcpy"), by_category),
    **dict.fromkeys(("sync_wait", "alloc_wait", "dataload_wait"), by_category),
    **dict.fromkeys(("device_bound", "cpu_bound", "python_bound"), by_category),
    **dict.fromkeys(("recompiles", "compiling"), by_category),
    "host_op": at_most(by_host_op),
    **dict.fromkeys(("costly_sync", "costly_allocation", "free_sync"), by_sync),
    "joint_syncs": by_replay("all syncs", *(f"{kind} syncs" for kind in SYNC_KINDS)),  # one kind has no row of all
    "pageable_copies": at_most(by_replay("htod syncs")),
    "allocator_retries": by_replay("alloc syncs"),
    "starved": by_loader,
    "worker_restarts": at_most(by_loader),
    **dict.fromkeys(("buffer_broadcasts", "unused_search"), at_most(by_window)),
    "outside_phases": by_other_phase,
    **dict.fromkeys(("busy_machine", "contended_cores"), at_most(by_core_use)),
    **dict.fromkeys(("launch_bound", "host_round_trips"), at_most(by_launches)),
    "cold_start": by_once,
    "expert_imbalance": by_experts,
    "pipeline_bubble": by_pipeline,
    "below_roof": at_most(by_roof),
    "casts": at_most(by_copies),
    "anomaly_detection": at_most(by_checks),
    "unfused_attention": at_most(by_attention),
    "unfused_optimizer": by_optimizer,
    "metric_gathers": by_metrics,
    "repeated_reductions": at_most(by_gradients),
    "straggler": at_most(by_stragglers),
    "late_ranks": by_cluster,
    **dict.fromkeys(("desync", "never_arrived", "strategy", "ranks_alone"), no_time),
    **dict.fromkeys(("missing_ops", "foreign_trace", "empty_recording", "wall_time", "garbage_collection"), no_time),
    **dict.fromkeys(("memory_growth", "longer_steps"), no_time),
}
"""Code of a finding -> its time by the tables of the same sheet, ns."""
