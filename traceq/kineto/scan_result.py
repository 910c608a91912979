"""Result of reading a source, by either reader."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from traceq.frozen import frozen
from traceq.kineto.damage_report import Damage
from traceq.model import Events, Thread

__all__ = ["Scan"]


@frozen
class Scan:
    """Contents of one file: events as columns, its named threads, the raw JSON of its metadata, its damage.

    `num_counters` samples of counters, as of hardware, are not read.
    """

    events: Events
    threads: tuple[Thread, ...]
    metadata: Mapping[str, msgspec.Raw]
    damage: Damage
    num_counters: int
