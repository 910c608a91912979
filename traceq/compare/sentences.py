"""Every sentence of a comparison: one template per state of the verdict, and per kind of statement beside it.

A field is a measure with its unit (`{wait_delta_ns}`), a range of two (`{ci_delta_ns}` of `least_ci_delta_ns` and
`most_ci_delta_ns`), or a name (`{a}`, `{b}`, `{line}`). Of the sign of `delta_ns` come `{size}`, `{costs}`, `{more}`,
`{longer}`, `{slower}` and `{later}`. A noun after a colon is counted. Of leads the first is said of which everything is
known, of further sentences every one.
"""

from __future__ import annotations

from traceq.claims.sentences import Sentence


def _one(lead: str, *evidence: str) -> Sentence:
    return Sentence((lead,), evidence)


_OBSERVED = "{b} takes {size} {more} {per} ({delta_pct}), from {windows}, no interval."
_OPEN = (
    "Not decided at the {threshold_pct} threshold: {b} against {a} is {ci_delta_ns} {per} "
    "(95 % CI, estimate {delta_ns}, {delta_pct})."
)
_QUESTIONS = "It is 1 of {num_questions} questions of this run."
_DECIDED = _one(
    "{b} {costs} {size} {per} ({delta_pct}, 95 % CI {ci_delta_ns}): {verdict} at the {threshold_pct} threshold.",
    _QUESTIONS,
)
_TIMED = ("That accounts for {delta_ns} {per}.", "It is {share_pct} of the traced {traced_delta_ns}.")
_SYNCS = (
    *_TIMED,
    "Of that, copies are {copied_delta_ns}, waits {waited_delta_ns} and the rest {rest_delta_ns}.",
)
_LOADER = (
    "The loader alone takes {loader_ns} for the data of a step, the rest of the step {rest_ns}.",
    "The loader alone takes {loader_ns} for the data of a step, which takes {step_ns} with any wait.",
    "A step takes {per_step_mean} batches of the loader.",
)
_SIZES = "Inputs may also be of another size: no shapes are recorded of {unknown_sizes}."
_CPU = "CPU time of the main thread (excludes blocked time): "
_TRUST = "Trust which ops were added or removed, not their durations (--full)."
_NUMBERS = (
    "There are {more_mean} more {per}.",
    "There are {fewer_mean} fewer {per}.",
    "There are {more_calls_mean} more {calls} {per}.",
    "There are {fewer_calls_mean} fewer {calls} {per}.",
    "They move {moved_delta_bytes}.",
    "Python between them is {python_delta_ns} of it.",
)


def _cause_of(what: str) -> Sentence:
    """Return the sentences of a cause: a part of the delta, or one that others offset."""
    return Sentence(
        (f"{{delta_ns}} of the traced {{of_delta_ns}} {{per}} is {what}", f"{{delta_ns}} {{per}} is {what}"), _NUMBERS
    )


SENTENCES: dict[str, Sentence] = {
    # states of the verdict
    "not_comparable": _one("Not comparable ({reasons}): the breakdown shows where time goes, not what a change costs."),
    "nothing_to_compare": Sentence(
        (
            "Nothing to compare: no unprofiled pairs yet, and no trace of {untraced}.",
            "Nothing to compare: no unprofiled pairs yet.",
        )
    ),
    "starved": _one(
        "Starved: each step waits {starved_ns} for data.",
        *_LOADER,
        "The recording has {wait_ns} of dataload_wait.",
        "Samples: the loader delivers {loaded_rate}, without waiting the job would train {trained_rate}.",
    ),
    "not_starved": _one(
        "Not starved: the loader could feed {feeds_ratio} as many steps.",
        *_LOADER,
        "Yet each step waits {wait_ns} ({wait_pct}) in dataload_wait: workers share cores, or batches arrive late.",
    ),
    "same_time": _one("No difference in time seen between {a} and {b}, from {windows}."),
    "within_jitter": _one(
        "No difference beyond jitter seen between {a} and {b}: {delta_ns} {per} ({delta_pct}), from {windows}."
    ),
    "within_scatter": _one(
        "No difference beyond the scatter of steps seen between {a} and {b}: {delta_ns} {per} ({delta_pct})."
    ),
    "ranks_of_one_job": _one(
        "The step of {b} is {size} {longer} than that of {a} ({delta_pct}), from {windows}.",
        "They are ranks of one job, which wait for each other: no code change separates them.",
        "Counted on one side only: {uncommon_steps}.",
    ),
    "work_of_one_side": _one(
        _OBSERVED, "{alone_delta_ns} is work that {doing_side} does, and {lacking_side} less often or never."
    ),
    "other_work": Sentence(
        (
            "{b} takes {size} {more} {per} ({delta_pct}) but does other work, from {windows}, no interval.",
            "{b} takes {size} {more} {per} ({delta_pct}) but does other work: {verdict}.",
        ),
        ("The 95 % CI is {ci_delta_ns}, the threshold {threshold_pct}.",),
    ),
    "other_pace": _one(_OBSERVED),
    "observed": _one("{b} {costs} {size} {per} ({delta_pct}), from {windows}, no interval."),
    "steps_apart": _one("{b} takes {size} {more} {per} ({delta_pct}), from {windows}, no interval: {verdict}."),
    "inconclusive": Sentence(
        (
            _OPEN,
            "Not decided: {b} against {a} has no interval, estimate {delta_ns} {per} ({delta_pct}).",
        ),
        (_QUESTIONS,),
    ),
    "in_the_noise": _DECIDED,
    "detectable": _DECIDED,
    "material": _DECIDED,
    # what the verdict rests on, and in what the sides differ
    "ranges": _one("Steps take {step_a_ns} in {a} and {step_b_ns} in {b}."),
    "slowest_decides": _one("Of {num_ranks} ranks the slowest of each side is compared."),
    "count_samples": _one(
        "To compare per sample, record with traceq.record(samples_per_rank=N), or from a DataLoader."
    ),
    "unrecorded_device": _one("Device: {device}: it may be another one."),
    "cold_start": _one(
        "What is compared holds a cold start, once and not per step: {once_a_ns} in {a} and {once_b_ns} in {b}.",
        "It is that of rank {rank}.",
        "Trace steps after a warm-up.",
    ),
    "work_between": Sentence(
        (
            "Besides regular steps {side} spends {spent_pct} of its training on {work}, {other_side} {other_pct}.",
            "Besides regular steps {side} spends {spent_pct} of its training on {work}, {other_side} on none.",
        ),
    ),
    "uncounted_steps": _one("Steps unlike the others are not compared: {a_pct} of the time of {a}, {b_pct} of {b}."),
    "work_differs": _one("The sides differ in what they compute: {differences}."),
    "work_factor": _one(
        "{work_ratio} the {work} in {time_ratio} the time: {per_work_delta_pct} time for the same {work}."
    ),
    "why": _one("Why: {reason}.", "A/A noise floor: {noise_floor_ns} ({control} against itself)."),
    "pace": _one(
        "{paced_delta_ns} is the pace of work that both sides do alike, as with another {other}.",
        _SIZES,
    ),
    "same_ops": Sentence(
        (
            "{same_delta_ns} is in ops that both sides run as often.",
            "Both sides issue the same ops.",
        ),
        (
            "One run per side cannot tell a change from process-to-process variation, {other}.",
            _SIZES,
        ),
    ),
    "rare_events": _one(
        "Typical step {typical_delta_ns}; mean {delta_ns} ({ci_delta_ns}).",
        "In {b}, {event} takes {event_ns} in 1 of {num_steps_b} steps.",
        "In {a}, {event} takes {event_ns} in 1 of {num_steps_a} steps.",
    ),
    "busy_machine": _one(
        "The machine was busy with other processes: record both on an idle one.",
        "A thread waits {core_wait_a_ns} per step for a core in {a}, {core_wait_b_ns} in {b}.",
        "CPU time of a step: {cpu_a_ns} and {cpu_b_ns}.",
    ),
    "cpu_time": Sentence(
        (
            _CPU + "{delta_ns} {per} ({delta_pct}, 95 % CI {ci_delta_ns}): {verdict}.",
            _CPU + "{delta_ns} {per} ({delta_pct}): {verdict}.",
        ),
        ("Of {num_ranks} ranks it is that with most.", "By rank: {rank_deltas} {per}."),
    ),
    "samples": _one(
        "A step trains on {num_b} samples instead of {num_a} and takes {b_ns} instead of {a_ns}: {delta_ns}.",
        "The 95 % CI is {ci_delta_ns}.",
        "The job trains {num_b_per_s} samples/s instead of {num_a_per_s}.",
    ),
    "interaction": Sentence(
        (
            "Interaction: {delta_ns} per step (95 % CI {ci_delta_ns}), {verdict}.",
            "Interaction: {delta_ns} per step, {verdict}.",
        ),
        (
            "{here} differs from {here_from} by {here_delta_ns}, {there} from {there_from} by {there_delta_ns}.",
            "The cost is the same in {same_contexts}.",
            "Other work in {hides} hides this much of the cost.",
            "Other work in {adds} adds this much to the cost.",
        ),
    ),
    # whether a disabled change is free
    "free": _one(
        "{b} adds no op to {a}: {num_ops} ops per step, none more often.",
        "Copies from device to host in {phase}: {copies_mean}.",
        "Reads of a value in {phase}: {reads_mean}.",
    ),
    "not_free": _one("{b} adds ops to {a}, per step: {added}."),
    # why durations of traced steps are no evidence
    "outside_interval": _one("The traced delta, {delta_ns}, is outside the unprofiled 95 % CI.", _TRUST),
    "unlike_unprofiled": _one(
        "The traced delta, {delta_ns}, is not that of the unprofiled steps, {unprofiled_delta_ns}.", _TRUST
    ),
    "undecided": _one(
        "The unprofiled steps do not decide, and the traced {delta_ns} is no evidence by itself.", _TRUST
    ),
    "not_seen": _one("The unprofiled steps show no difference that the traced {delta_ns} could explain.", _TRUST),
    # what makes the traced delta
    "line_changes": Sentence(
        (
            "{b} adds at {line} in {phases}: {added}; it removes {removed}.",
            "{b} adds at {line} in {phases}: {added}.",
            "{b} removes at {line} in {phases}: {removed}.",
        ),
        _TIMED,
    ),
    "syncs": Sentence(
        (
            "{b} removes {removed_syncs_mean:sync} {per} ({removed}) and adds {added_syncs_mean:sync} ({added}).",
            "{b} adds {added_syncs_mean:sync} {per} ({added}).",
            "{b} removes {removed_syncs_mean:sync} {per} ({removed}).",
        ),
        _SYNCS,
    ),
    "value_reads": Sentence(
        (
            "{b} removes {removed_syncs_mean:value read} {per} ({removed}) and adds {added_syncs_mean} ({added}).",
            "{b} adds {added_syncs_mean:value read} {per} ({added}).",
            "{b} removes {removed_syncs_mean:value read} {per} ({removed}).",
        ),
        (*_SYNCS, "On a GPU a read of a value is a sync."),
    ),
    "cause": _cause_of("{what}."),
    "cause_of_host": _cause_of("host time of {what}."),
    "cause_of_collective": _cause_of("{what}, with waits for other ranks."),
    "all_else": Sentence(("The rest is {delta_ns} {per}, of which {parts}.", "The rest is {delta_ns} {per}.")),
    "moved": _one("{b} moved: {what}.", *_TIMED),
    "replaced": _one("{b} does other work: {what}.", *_TIMED),
    "no_known_change": _one("Most of the traced {traced_delta_ns} {per} is no known change: {delta_ns} {what}."),
    "minor_changes": _one("Most of the traced {traced_delta_ns} {per} is in {what}: {delta_ns} in all."),
    "delta_within_jitter": _one(
        "The traced delta, {traced_delta_ns} {per}, is within run-to-run jitter, {delta_ns} ± {error_ns}."
    ),
    "mostly_jitter": _one("Most of the traced {traced_delta_ns} {per} is run-to-run jitter: {delta_ns} ± {error_ns}."),
    "many_small_changes": _one(
        "Most of the traced {traced_delta_ns} {per} is in {what}: {delta_ns} ± {error_ns}.",
        "None of them is beyond run-to-run jitter alone.",
    ),
    # where it shows
    "only_rank": _one(
        "Only rank {rank} is {slower} in its own time, by {size} {per}.",
        "Most of it is {cell_delta_ns} of {category} time in {phase}.",
        "The other ranks wait {more} for it in {waited_in}.",
    ),
    "slowest_rank": _one(
        "Rank {rank}, which is explained, has the most own time of both sides: {own_a_ns} and {own_b_ns}.",
        "The median of the others is {others_a_ns} and {others_b_ns}.",
        "Exposed communication is left out.",
    ),
    "later_host": _one(
        "{late_side} is later: its device waits {host_bound_ns} more for its host than that of {early_side}.",
        "It is {in_collectives_ns} less in collectives.",
    ),
    "loader_workers": _one("In {side}, {workers}."),
    "waits_and_transfers": Sentence(
        (
            "Exposed waits of rank {rank} change by {wait_delta_ns}, exposed transfers by {transfer_delta_ns}.",
            "Exposed waits for others change by {wait_delta_ns}, exposed transfers by {transfer_delta_ns}.",
        )
    ),
    "op_work": Sentence(
        (
            "{op}, by shapes, {delta_ns}: {calls_ratio} calls, {per_call_ratio} {work} per call, {speed_ratio} speed.",
            "{op}, by shapes: {calls_ratio} calls, {per_call_ratio} {work} per call.",
        ),
        ("Its mix of shapes changed: over all its speed is {overall_ratio}.",),
    ),
    "graph_replays": _one(
        "{replaying_side} replays CUDA graphs ({replays_mean} {per}, {launching_side} none).",
        "It has {launches_mean} kernel launches {per} instead of {other_launches_mean}.",
        "Its host needs {less_host_ns} less {per}.",
        "Its host needs {more_host_ns} more {per}.",
        "That gains nothing: the device of {launching_side} computes for {busy_pct} of its step.",
    ),
    "starts_elsewhere": _one(
        "It shows as {delta_ns} of {category} in {phase}, whose {calls} take as long as before.",
        "They start {later} because of {what}.",
    ),
    "traded_with_kernels": _one(
        "It shows as {delta_ns} of {category} in {phase}, where kernels take {kernels_delta_ns}.",
        "Kernels run while the device would wait for the host, or no longer do.",
    ),
    "most_in_phase": _one("{share_pct} of the difference is in {phase}."),
    "python_line": _one("{b} spends {more} time in Python at {line} in {phase} than {a}."),
    "unprofiled_phase": _one(
        "In the unprofiled steps, {phase} takes {b_ns} instead of {a_ns}.", "In {side}, {workers}."
    ),
}
"""Sentences by the code of what they say."""

CAVEATS: dict[str, tuple[str, ...]] = {
    "profiled_steps": ("step times come from the traced windows: profiled, few, and not interleaved",),
    "no_steps": ("{path}: no unprofiled steps; this process is ignored",),
    "one_process_explains": (
        "arm {arm}: the last of its {num_processes} processes is traced (median step {traced_ns}; of all {median_ns})",
        "{path}: the median of {num_recordings} recordings; only its trace is looked at",
    ),
    "uneven_processes": (
        "{path}: its {num_processes} processes have median steps of {medians}: something disturbed some; record again",
    ),
    "arm_ended": ("arm {arm}: {why}",),
    "not_paired": ("{arms} were never paired with each other: their median steps are compared",),
    "not_interleaved": (
        "all processes of one side ran before the other's: the delta includes drift in between; alternate the sides",
    ),
    "built_apart": (
        "{arms} are separate builds, which may differ by {layout_pct} by memory layout: record several runs per side",
    ),
    "ranks_apart": (
        "only {common_ranks} of {num_ranks} on both sides: the others are ignored",
        "rank {rank_a} is compared with rank {rank_b}: ranks of one job differ as well",
        "ranks {ranks_a} against {ranks_b}: no rank is on both sides, so the delta is not explained",
    ),
    "other_loader": ("{difference}: loader and steps were recorded with different settings",),
    "confounded": ("possible confounder: {difference}",),
    "throttled": ("clocks were throttled during recording: {why}",),
}
"""Doubts by code: the first is said of which everything is known."""

# what questions a comparison

DIFFERS = "{what}: {a} against {b}"
NOT_RECORDED = "not recorded"
UNKNOWN_SAMPLES = "samples per step unknown"
WHY_NOT = {
    "foreign": "no event of {sides} is of PyTorch's profiler",
    "loader": "one side is a loader alone",
    "shapes": "shapes: the largest {op} is {a} against {b}",
    "weights": "weights: of {num_a} shapes against {num_b}, none is the same, such as {a} against {b}",
    "calls": "calls: {op} runs {b} times {per} instead of {a}",
}
"""Why sides are not comparable."""
LIKEWISE = "{reason}, and {num} more likewise"
PHASES = "phases on one side only: {phases}"
OTHER_PACE = {True: "load or clock", False: "load, clock or number of threads"}
"""What else gives the same work another pace, with a device and without."""
BEFORE_TRACE = "work launched before the trace began"
TOO_FEW_STEPS = "{what} that so few steps do not tell apart"
BY_REPLICATES = "{reason}: the same command with --replicates {num}"
BY_TURNS = "{reason}: each side again with the same --out, by turns, then traceq diff {paths}"

# decisions of --fail-on-delta

DECISIONS = {
    "exceeded": "{b} takes more than {limit} longer than {a}: {basis}",
    "kept": "{b} takes at most {limit} longer than {a}: {basis}",
    "undecided": "not decided whether {b} takes more than {limit} longer than {a}: {basis}",
}
WITH_INTERVAL = "{least} to {most} {per}, the 95 % interval of unprofiled steps"
WITHOUT_INTERVAL = "{least} {per}, from {steps}, without an interval"

# tables

CELLS = "Delta by phase and category ({windows}; profiled)"
COUNTS = "Syncs and collectives {per} that differ{more}"
SAME_COUNTS = " ({num} more are the same)"
NO_COUNTS = "Syncs and collectives {per}: the same on both sides ({syncs}, {collectives})"
NO_COLLECTIVES = "Collectives {per}: the same on both sides ({collectives}); syncs are not known"
MORE_WITH_FULL = "{num} more with --full."
INFERENCE = "Inference steps by kind and batch size"
MORE_CAUSES = "{num} more cause{s} in --json: net {net}, sum of absolute values {sum}."
WORK = "Time of ops by calls, work per call and speed"
OTHER_WORK = "The sides differ in what they compute: {a} against {b} {prefix}FLOP."
BY_SAMPLE = "Delta per sample, as arms train on different numbers of samples per step."
QUESTIONS = "{num} questions: the verdicts hold together, each interval alone."
ESTIMATES = "Step and delta are Hodges-Lehmann estimates, each of its own pairs."
EXCHANGES = "Calls and bytes: mean per traced step of one rank. `traceq show RUN/ARM` has the predictions."
RUNS = "`traceq show RUN` and `traceq diff RUN` say more of each."
