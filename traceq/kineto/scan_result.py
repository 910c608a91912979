"""Result of reading a source, by either reader."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from traceq.frozen import frozen
from traceq.kineto.columns import TrackNames
from traceq.kineto.damage_report import Damage
from traceq.model import Events

__all__ = ["Scan"]


@frozen
class Scan:
    """Contents of one file: events as columns, names of its tracks, the raw JSON of its metadata, its damage.

    `num_counters` samples of counters, as of hardware, are not read.
    """

    events: Events
    names: TrackNames
    metadata: Mapping[str, msgspec.Raw]
    damage: Damage
    num_counters: int
