"""The workers of a rank's data loader, as far as a recording can see them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch.utils.data import DataLoader

from traceq.recorder.process.child_processes import daemonic_children

_MOST_LINES = 30


@dataclass(frozen=True, slots=True)
class LoaderWorkers:
    """`pids` of the living workers: the daemons that multiprocessing started, unless the loader is known.

    `sample` lets them count which lines they run, for a few seconds; `lines` waits for it and returns the counts.
    Each epoch starts `num_renewed` of them anew.
    """

    pids: Callable[[], Sequence[int]] = daemonic_children
    sample: Callable[[], object] = tuple
    lines: Callable[[], Mapping[str, int]] = dict
    num_renewed: int = 0


def loader_settings(loader: DataLoader[Any]) -> dict[str, int]:
    """Return `num_workers` and `prefetch_factor` (0 without workers) of a loader, as facts for the manifest."""
    num_workers = loader.num_workers
    return {"num_workers": num_workers, "prefetch_factor": (loader.prefetch_factor or 0) if num_workers else 0}


def worker_line_facts(ranks: Sequence[Mapping[str, int]]) -> dict[str, str | int | float]:
    """Return the lines that workers of all ranks ran most, as facts for the manifest; empty without a sample."""
    counts: Counter[str] = Counter()
    for of_rank in ranks:
        counts.update(of_rank)
    if not counts:
        return {}
    return {"worker_samples": counts.total(), "worker_lines": json.dumps(counts.most_common(_MOST_LINES))}
