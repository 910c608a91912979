"""Changes in jobs of several ranks: their collectives wait for the last rank, so what one rank does delays all."""

from __future__ import annotations

import os
from functools import cached_property
from typing import Any

from known_changes.kinds import SYNC_OPS, Edit
from known_changes.recording import Change, Doc, Tools, after, main_stream

JOB_KINDS = {"job_item": 0.0, "job_sleep": 3_000.0, "job_sleepbig": 40_000.0, "job_sleepall": 3_000.0}
"""Kinds of changes, with the us of added host time; all but the last change one rank only."""

_CHANGED_RANK = 3


class Job:
    """The traces of all ranks of a job, one file each in a folder."""

    def __init__(self, tools: Tools, source: str) -> None:
        """Remember the folder: `gen.job` reads it."""
        self.tools, self.source = tools, source

    @cached_property
    def _replayed(self) -> dict[int, Doc]:
        os.environ["KNOWN_JOB"] = self.source
        docs, _, _ = self.tools.gen.job(lambda *_: {})
        return dict(enumerate(docs))

    def edit(self, kind: str) -> Edit:
        """Add a sync or host work twice per step, on one rank or on all."""
        rank, on_all = _CHANGED_RANK, kind == "job_sleepall"
        places: dict[int, list[Doc]] = {}
        hosts: dict[int, Change] = {}

        def change(number: int, doc: Doc, simulator: Any) -> dict[str, Any]:
            if number != rank and not on_all:
                return {}
            places[number] = self.tools.places(doc, 2)
            hosts[number] = self.tools.owners(doc, places[number], None if on_all else rank)
            if kind == "job_item":
                return {"syncsat": after(places[number]), "syncstream": main_stream(simulator)}
            return {"stalls": [(ts, JOB_KINDS[kind]) for ts in after(places[number])]}

        os.environ["KNOWN_JOB"] = self.source
        docs, simulators, waits = self.tools.gen.job(change)
        b = dict(enumerate(docs))
        if kind != "job_item":
            return Edit(self._replayed, b, tuple(dict.fromkeys(hosts.values())))
        self.tools.add_sync(docs[rank], simulators[rank], places[rank], waits[rank], "item")
        return Edit(self._replayed, b, (Change("sync", SYNC_OPS["item"], len(places[rank]), rank=rank),))
