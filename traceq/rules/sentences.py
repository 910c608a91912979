"""Every sentence of `traceq check`: why a trace cannot answer a rule, and what a rule was expected to be.

Fields are texts and counts.
"""

from __future__ import annotations

IDENTICAL = "collectives identical across ranks"
"""The rule about all ranks together."""

UNANSWERED = {
    # of a rank
    "no_device_work": "the trace has no device work",
    "use_scalar": (
        "the trace has no device work; use 'scalar{phase} == 0', which counts the reads that wait on a device"
    ),
    "device_work": "only traces without device work have {metric}",
    "use_dtoh": "only traces without device work have {metric}; use 'dtoh{phase} == 0'",
    "no_sizes": "the trace does not record the sizes of its {metric} calls",
    "no_length": "a step of length 0 has no shares",
    "no_calls": "the trace has {num:,} kernels of collectives and no calls to count",
    "no_phase": "no phase '{phase}'; the phases are {names}",
    "misspelt_phase": "no phase '{phase}'; did you mean '{close}'? the phases are {names}",
    "no_shapes": "no shapes of matrix products are recorded (record_shapes=True)",
    "no_peaks": "the peaks of '{device}' are not known, or wrong; give them with --peak",
    "at_most": "it is at most so large: lengths of sequences or groups are not recorded",
    "at_least": "it is at least so large: only {modelled:.1f} % of the time has a model",
    # of all ranks
    "lacks_ranks": "traces of {num} of its {num_ranks} ranks, and it may be broken on another",
    "one_rank": "it compares ranks, and the run has only rank {rank}",
    "not_concurrent": "the traces were recorded one after the other",
    "unnamed_groups": "ranks send to each other, and the trace does not name its groups",
    "nothing_in_common": "rank{s} {ranks}: no collective in common with the trace of another rank",
}
"""Why a trace leaves open whether a rule holds."""

EXPECTED = {
    "no_statistic": "none: {metric} is a sum, only times of the step have one value per step",
    "no_phases": "none: {metric} has no phases; dtoh and htod, the copies waited for, have",
    "of_whole_step": "none: {metric} has no phases; it is of the whole step",
    "order": "[mean|median|p95|max|min] [in PHASE] [per step] after the metric",
}
IN_FILE = {
    "nested": "{path}: nested too deeply; expected a list of rules",
    "no_rules": '{path}: {found}expected rules = ["..."], or [[rule]] tables with rule = "..." and why = "..."',
}
