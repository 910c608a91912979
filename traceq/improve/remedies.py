"""Remedies: for each value of a toggle that may make a job faster, the code that has the same effect."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from traceq.frozen import frozen


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
