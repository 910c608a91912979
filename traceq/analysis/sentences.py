"""Every sentence of the tables of `traceq show`: titles, notes below them and caveats, in the order of a report.

Fields are texts that their callers format, and counts. `{of}` is what rows add up: `sum of 8 ranks, whole trace`.
"""

from __future__ import annotations

# of several tables

CATEGORIES = {
    "host_bound": "host-bound",
    "exposed_comm": "exposed communication",
    "exposed_wait": "exposed waits for other ranks",
    "exposed_transfer": "exposed transfers between ranks",
    "exposed_memcpy": "exposed copies",
    "compiling": "torch.compile",
}
"""Categories of time, within a sentence, that do not have their name there."""
MORE_ROWS = "{num:,} more row{s} in --json."
NONE_RECORDED = "{title}: none recorded {in_steps}"
COMPARED_BY_DIFF = "`traceq diff` on the run compares them."
OWN_TIME = "Own time: step time minus exposed communication."
NO_WORKERS = "num_workers=0: the main thread makes each batch when it is needed."
ALONE = "Each rank is replayed alone, as there are more than {bounds}; `traceq whatif` replays all together."
UNTIL_DONE = "Measured until all work launched in {the_step} is done: {time}."
IN_GRAPHS = {
    "captured": "{share} of GPU time is in {num:,} CUDA graph replay{s}, and belongs to what was captured.",
    "not": "{share} of GPU time is in {num:,} CUDA graph replay{s}; it belongs to the line and module of the replay.",
    "in part": (
        "{share} of GPU time is in {num:,} CUDA graph replay{s}. {hidden} of it has no known capture, "
        "and belongs to the line and module of the replay."
    ),
}
"""Work of replays of CUDA graphs, by what is known of their capture."""

# arms, batches, unprofiled, facts

ARMS = "Arms in separate processes: unprofiled steps (job: the slowest rank)"
BATCHES = "Samples per second of all ranks, by batch"
LARGEST_BATCH = "The largest batch that fits"
OF_LARGEST_BATCH = "Memory is that of the largest batch, on the rank that uses most."
UNPROFILED = "Unprofiled steps (job: the slowest rank)"
FACTS = "Facts of the recipe, by arm"

# step_profile

WALL_TIME = "Wall time{of_rank}, from its start to the end of the recording"
UNPROFILED_STEP = "An unprofiled step, by phase ({ranks}{num_steps:,} steps{clock})"
BY_DEVICE = ", by the device's clock"
BY_HOST = "By the host's clock: on a device, phases show when work was launched, not when it ran."
PACE = "The job's step takes {step}."
PACE_AND_RATE = "The job's step takes {step}: {rate} samples/s."
SLOWEST_RANK = "Rank {rank} is the slowest; the fastest takes {fastest}."
BATCHES_OF_STEP = "A step holds {num} batches of {per_batch}."
MFU_OF_STEP = "MFU {mfu}."
PEAK_MEMORY = "Peak memory{of_rank}: {peaks}."
OTHER_PHASE = "`other` is the rest of the step: ops, checks, metrics and logging of the script."
DEEPSPEED = "DeepSpeed clips, steps and zeroes gradients in one call, optim_step, and reduces them within backward."

# loader

LOADER = "Data loader alone, by rank (batches per rank: {num:,})"
FEEDS = "The loader feeds at most {rate} samples/s."
BIMODAL = (
    "Bimodal: {share} of the batches were ready ({ready}), the loop waited for the others ({waited}), "
    "{num:.1f} batches per wait."
)
PREFETCHED = "At most {num} batches can be ready (num_workers x prefetch_factor)."
CORES = "CPU time of an unprofiled step, by process ({cores} cores)"
CORES_OF_RANKS = (
    "CPU time per rank of an unprofiled step, by process (mean of {num_ranks:,} ranks; {cores} cores for {num} rank{s})"
)
NO_LOADER = "No worker of a DataLoader ran."

# steps

STEPS = {
    "device": "Step times up to the end of the device work that each step launched.",
    "host": "Host step times.",
}
LEFT_OUT = "Left out: {num:,} partial window{s}."
WHOLE_TRACES = "Whole trace, without steps"
TRACED = "Traced steps: {slowdown:.2f}x unprofiled ones ({median}, median of {num:,})."
MUCH_LONGER = ", {slowdown:.2f}x unprofiled ones"
NO_STEPS = "ProfilerStep marks no whole step of the trace: it counts as one step, `whole trace`"
ONLY_STEP = "rank {rank}: {step} is the only step, and partial: {differs}; record two or more steps"
LAUNCHED_BEFORE = "{time} of it is work launched before"
ENDS_LATER = "it ends {time} after the host's"
DISTURBED = "rank {rank}: the profiler itself, or loading of kernels, takes {time} ({share} of {step}){discount}"
DISCOUNT = ": discount that step"
SLOWED = "rank {rank}: recorded Python stacks slow the host: {num:,} calls {per_step}, one per {time}"
UNLIKE = {
    "longer": (
        "rank {rank}: traced steps ({traced}) are unlike unprofiled ones ({median}, from {least} to {most}): "
        "the profiler adds at most {overhead}"
    ),
    "shorter": (
        "rank {rank}: traced steps ({traced}) are unlike unprofiled ones ({median}, from {least} to {most}): "
        "a profiler makes no step shorter"
    ),
}
"""Medians of steps that differ by more than the profiler explains."""

# inference, phases, devices

INFERENCE = "Inference steps{of_rank}"
INFERENCE_KINDS = "Inference steps by what they compute{of_rank}"
PHASES = {
    "recorded": "Phases are declared by the recording.",
    "inference": "Phases are what the steps of the inference engine compute: `mixed` is prefill and decode.",
    "passes": "Phases are the passes of a micro-batch that the innermost annotations name: attn(F), PP:1B0.",
    "annotations": "Phases are the main thread's outermost annotations.",
    "mixed": "Phases are the main thread's outermost annotations, and inferred where these launch nothing.",
    "structure": "Phases are inferred from optimizer, data loader and autograd.",
}
"""Phases by the rule that tells them."""

# partition, compiling

BY_PHASE = "{whole} by phase and category{basis}"
BY_RANK = "{whole} by rank and category"
FIRST_COLLECTIVE = (
    "exposed waits of {time} ({share}) are in a first collective, where profilers start apart: they make no rank late"
)
COMPILED = "Compiling by function (whole trace)"

# syncs, collectives

SYNCS_UNKNOWN = "{title}: not known, as the device's work is not recorded"
SYNCS_OF_RANKS = "num: {of}; times: the worst rank's"
READS_ON_CPU = " read{s} of a value on a CPU; on a device each would wait"
AND_ALLOCATIONS = ", and {num} blocking allocator call{s}"
ON_WORST_RANK = "; each on the rank where it costs most"
SYNCS_TOGETHER = "{num:,} syncs; savings do not add up: `replay` removes all together."
READS = "{num:,} reads of a tensor's value by Python: on an accelerator each is a device-to-host sync."
READS_UNKNOWN = "{num:,} reads of a tensor's value by Python; without device rows it is not known what they cost."
MEAN_OF_RANKS = " (times: mean of {num} ranks)"

# experts, strategy, pipeline

EXPERTS = "Expert compute of a step by rank"
EXPERT_LAYERS = "Tokens of experts by layer"
TOKENS = (
    "The busiest rank of a layer has {mean} times the mean tokens, at most {most:.2f} (layer {layer}, rank {rank})."
)
TOKENS_OF_ROWS = "Tokens are rows of grouped products, which may be padded."
STRATEGY = "Strategy: {strategy}, {verdict} over {steps}{ranks}"
SAME_ON = " (rank {rank}; the same on {num} of {num_ranks} ranks)"
PIPELINE = "{pipeline}, by rank"
LARGEST_BUBBLE = "{pipeline}, the one of {num} with the largest bubble, by rank"

# clusters, ranks

CLUSTERS = "Clusters of similar ranks"
RANKS_BY_PHASE = "Own time of a step, over ranks"
SHADES = "One cell is {cell}, shaded by its slowest rank; the darkest is {time} above the phase's median."
RANKS = "Ranks (waits and transfers per step)"
WAITED_FOR = "The others wait for {ranks}."
NO_STRAGGLER = "No rank is a straggler."
NOT_CONFIRMED = "{waited}; {they_are} not late throughout {num:,} unprofiled steps."
HIDDEN = "{waited}, late in {phase}, where unprofiled times hide lateness: record again to tell it from chance."
IRREGULAR = "{waited}, too irregularly to name a straggler."
TOO_FEW = "{num:,} traced steps are too few to name a straggler; the others wait for {ranks} in {each}."
WAITED = "{in_steps} the others wait for {ranks}"
ONE_CLOCK = "All ranks share the clock of {host}."
NOT_ONE_JOB = "the traces were recorded one after the other: their collectives are not compared"
RANKS_LEFT_OUT = "{ranks}: not compared with the others, as another kind of rows names their collectives"
CLOCKS = {
    True: "ends of collectives scatter too much to compare clocks ({groups}): waits are estimated from durations",
    False: (
        "ends of collectives scatter too much to compare clocks ({groups}), and durations give impossible waits: "
        "do others use the devices?"
    ),
}
"""Clocks that cannot be compared, by whether durations tell possible waits."""
CAUSED_WAITS = "What ranks wait for (waits per step, mean of the ranks that wait)"
SKEW = "Collectives across ranks ({of})"
SKEW_NOTE = "Transfer: the shortest duration over ranks, summed; skew: from the first to the last rank's start, summed."

# desync, arrivals, idle, stalled

DESYNC = "The first place in each group where its ranks differ; later differences can be a consequence."
LOST_EVENTS = "{ranks} lost events: collectives are not compared with other ranks'"
ARRIVALS = "Collectives that never completed"
LAST_ISSUED = "For a rank that never arrived: the last collective that it issued."
IDLE = {
    "device": "The device idles {idle} of {a_step}, {share}.",
    "host": "The main thread runs no op for {idle} of {a_step}, {share}.",
}
BESIDE_ONCE = ", beside what is done once"
GAVE_UP = "The last collective that each rank issued; the one before it may be the one that did not complete."

# replay, critical

CHANGES = "{whole} if one thing changed, by the options of `traceq whatif`{of_rows}"
ROWS_TOGETHER = "sync:{line} is {num} rows of syncs together"
REPLAY = "{whole} without some of its time{on_rank}"
WHICH_RANK = {
    "slowest": "the slowest",
    "waits least": "which waits least for others, the first collective aside",
    "saves": "on which that saves time",
}
REPLAY_RANGE = "At most: inferred waits between streams go, unexplained delays shrink, host and workers keep up."
EXPLAINED = "Replay explains {explained} of {observed}."
NOT_REPLAYED = "{share} of {the_step}{on_ranks} cannot be replayed, more than {most}: savings are unknown"
CRITICAL = "Critical path of {a_step}{on}"
CRITICAL_TOTAL = "Total: {shares}."
ACROSS_RANKS = "Collectives include waits for other ranks, where the path would continue."
JOB_PATH = "Critical path of {a_step} across ranks"
REST_OF_PATH = "the rest on {num} more"

# modules, efficiency

MODULES = "A module includes those inside it, and the backward pass of each."
MFU = "MFU {most}{mfu}{hfu} ({counted}) of {device}; ops: {of}"
MFU_UNKNOWN = "MFU unknown: {modelled}; ops against the roofs of {device} ({of})"
NO_MFU = "Ops against the roofs of {device} ({of})"
NO_PEAKS = "Work of ops ({of}); the peaks of this device are not known (--peak)"
UNSURE_PEAKS = (
    "The peak of this CPU is unsure: repeated measurements gave {unsure}. Record on an idle machine, or set it: "
    "--peak fp32=TFLOP/s --peak memory=GB/s."
)
LEDGER = "What is known of the device's work"
MODELLED = "{share} of the time is modelled"
NOT_MODELLED = {
    "no_model": "has ops without a model",
    "no_shape": "has ops without shapes",
    "arguments": "has ops of which only the arguments are known",
    "no_op": "was launched by no recorded op",
    "communication": "is communication",
    "copy": "is copies and memsets",
}
"""The rest of the time, by what is known of its work."""
DOUBTS = {"memory": "in cache, or a bound", "compute": "model or peak is wrong"}
"""Why work exceeds its roof."""
ABOVE_ROOF = {
    "compute": (
        "Calls above the compute roof count as at it ({num:,}): model or peak is wrong, as for Winograd and FFT "
        "convolutions."
    ),
    "memory": "Calls above the memory roof count as at it ({num:,}): their data is cached, or the model is wrong.",
}
NO_RATE = {
    True: "No rate where only a bound is known, as lengths of sequences or groups are not recorded.",
    False: "No rate where only the bytes of all arguments of a kernel are known.",
}
"""Why ops have a time alone, by whether their work is a bound."""

# kernels, memory, host, coverage

TINY = "{share} of {num:,} kernels are tiny: under 10 us, or shorter than their launch."
MEMORY = "Memory ({device}{on_rank}, {of})"
HIGHEST_PEAK = ", rank {rank}, the highest peak"
PEAK = "Peak {bytes}{reserved} in {phase}{line}{op}."
LEVELS = "Levels count from the start of the trace."
HOST = "Host ops by self time ({of})"
NO_HOST_OPS = "the profiler recorded no host ops (ProfilerActivity.CPU is missing): phases, ops and lines are not known"
SEVERAL_DEVICES = "rank {rank}: work of {num} devices in one process; idle means that none of them runs"
UNREAD_COUNTERS = "{num:,} samples of counters, as of hardware, are not read"
LOST_LAUNCHES = "{num:,} of {launches:,} kernel launches have no row of the device, which did more than the trace shows"
