"""Findings on categories of lost time: how much of a step each takes, what it means, and what replay saves without."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from traceq.analysis._basis import MOST_UNRECORDED, holds_in_steps, unprofiled_share
from traceq.analysis._core_use import core_findings
from traceq.analysis._device_copies import copies_of_device_words
from traceq.analysis._host_causes import HostCauses, host_words, lack_host_ops
from traceq.analysis._host_places import HostPlace, PlaceKind, place_words
from traceq.analysis._job_gain import job_gain
from traceq.analysis._longest_work import LongWork, shown_names, what_computes
from traceq.analysis._wording import (
    and_followers,
    category_term,
    in_brackets,
    in_traced_steps,
    per_step,
    range_of_steps,
    replay_term,
    saving_words,
)
from traceq.analysis.perturbation import much_longer_words
from traceq.causes.savings import Saving
from traceq.facts.ranks.exposed_waits import EXPOSED_TRANSFER, EXPOSED_WAIT
from traceq.facts.ranks.job import Job
from traceq.facts.timeline.data_loading import DATALOAD_WAIT
from traceq.facts.timeline.time_partition import TimeCategory
from traceq.frozen import frozen
from traceq.model import Caveat
from traceq.report import Finding, found
from traceq.short_texts import cut_apart
from traceq.units import Unit, format_value
from traceq.whatif.interventions import HiddenComm

__all__ = ["FREE", "LostTime"]

_EXPOSED = TimeCategory.EXPOSED_COMM.name.lower()
_COPIES = TimeCategory.EXPOSED_MEMCPY.name.lower()
_HOST_BOUND = TimeCategory.HOST_BOUND.name.lower()
_ONCE = TimeCategory.ONCE.name.lower()
_LOADER = TimeCategory.DATALOAD_WAIT.name.lower()
_SYNC, _ALLOC = TimeCategory.SYNC_WAIT.name.lower(), TimeCategory.ALLOC_WAIT.name.lower()
FREE = {
    _EXPOSED: "free communication",
    _HOST_BOUND: "a host that takes no time",
    _SYNC: "removing all syncs",
    _ALLOC: "removing all allocation calls",
}
"""Category -> what replay can take away of it."""
_LEAST_SAVED = 0.005
"""Part of a step that taking a category away must save, or it is not what limits the step."""
_NOTABLE_FIRST = 0.05
"""Part of the exposed waits from which those of first collectives are told."""
_BESIDE_COMPUTE = (_EXPOSED, EXPOSED_WAIT, EXPOSED_TRANSFER)
"""Categories of what other work would hide."""
_LOST = {
    _HOST_BOUND: (10.0, "the device waits while the host prepares the next launch", "shorten what the host does"),
    _EXPOSED: (
        10.0,
        "collectives run while nothing computes; traces of all ranks tell waiting from transfer",
        "overlap collectives with compute, or exchange less",
    ),
    EXPOSED_WAIT: (
        5.0,
        "ranks wait for the last one to arrive; see which are late, and why, in `ranks`",
        "ranks wait for the last one to arrive (--only ranks)",
    ),
    EXPOSED_TRANSFER: (
        5.0,
        "ranks exchange data while nothing computes; overlap it, or exchange less",
        "overlap them with compute, or exchange less",
    ),
    _COPIES: (5.0, "copies run while nothing computes; overlap them, or copy less", "overlap them, or copy less"),
    _SYNC: (2.0, "the host waits for the device, which then idles", "the device idles after syncs: remove them"),
    _ALLOC: (2.0, "the allocator asks the driver for memory, or gives it back", "keep memory in the allocator"),
    _LOADER: (5.0, "the main thread waits for the data loader", "more workers, or less work per sample"),
}
"""Category -> (percentage of the step from which it is a finding, what it means, what to do)."""
_COMPUTE = TimeCategory.COMPUTE.name.lower()
_COMPUTING = {
    _COMPUTE: ("device_bound", "device-bound", "on the device"),
    TimeCategory.CPU_COMPUTE.name.lower(): ("cpu_bound", "in ops on the CPU", "there"),
}
"""Category -> (code of the finding that it is most of a step, its words)."""
_PYTHON = TimeCategory.PYTHON.name.lower()
_COMPUTING_PCT, _MOST_PCT, _PYTHON_PCT = 85.0, 50.0, 25.0
"""Percentages of the step from which what is computed is what limits it, where nothing else is notable; and without a
device one op, and Python between ops, which a program can do without."""
_NEARLY_ALL = 0.95
"""Part of the time of all kernels from which the longest is told alone."""
_NAMED, _SHORT = 2, 24
"""Kernels or ops that a lead names, and characters of each."""
_IN_ONE_CALL = 0.8
"""Part of an op's time from which it is told that one call takes it."""
_MAKES_OWN = "the main thread makes each batch itself (num_workers=0); try num_workers > 0"
_DATA_WAIT = re.compile(f"^{DATALOAD_WAIT}$")


@frozen(eq=False)
class LostTime:
    """Time of the K counted steps of a job by category, and what is known of it.

    `by_step` float64[K] ns, mean over ranks; `first_waits` float64[K] ns of it in first collectives. `saved` is what
    replay saves if the resource of a category were free, on the rank `last`, which waits least for others (they would
    only wait longer) and has `last_ns` of each category; with None on each. `device_copies`: ns by op of exposed copies
    that no overlap can hide; `most_transfer_ns` of exposed communication at most; `host_causes` of each rank.
    `makes_own_batches`: the main thread does. `work`: the kernels in which devices compute, or ops of CPUs, the longest
    first; `places` of the host where no trace has a device. Shares are of the step without what is once.
    """

    job: Job
    by_step: Mapping[str, NDArray[np.float64]]
    first_waits: NDArray[np.float64]
    saved: Mapping[str, Sequence[Saving]]
    last: int | None
    last_ns: Mapping[str, float]
    device_copies: Mapping[str, float]
    most_transfer_ns: float
    host_causes: Sequence[HostCauses]
    makes_own_batches: bool
    work: Sequence[LongWork]
    places: Sequence[HostPlace]

    def findings(self) -> tuple[Finding, ...]:
        """Return the categories that take a large share of most counted steps, mean over ranks.

        Where none does, and devices or CPUs compute nearly all the time, or one op or Python takes most of it on a CPU,
        that is the finding.
        """
        large = [category for category in _LOST if self._is_large(category)]
        if not large:
            return self._limits()
        most = max(large, key=lambda category: float(self._ns(category).sum()), default="")
        return tuple(self._finding(category, self._beside(category) if category == most else "") for category in large)

    def caveats(self) -> tuple[Caveat, ...]:
        """Return a note on waits in first collectives where these are much of the steps, and others no finding."""
        first_ns, whole_ns, least_pct = self.first_waits.sum(), self._whole.sum(), _LOST[EXPOSED_WAIT][0]
        if 100 * first_ns < least_pct * whole_ns or not whole_ns or self._is_large(EXPOSED_WAIT):
            return ()
        time = f"{format_value(float(self.first_waits.mean()), Unit.NS)} {per_step(self.job.ranks[0].steps)}"
        share = format_value(100 * float(first_ns / whole_ns), Unit.PERCENT)
        text = f"exposed waits of {time} ({share}) are in a first collective, where profilers start apart"
        return (Caveat("first_collective", f"{text}: by these no rank is late"),)

    def _is_large(self, category: str) -> bool:
        ns, whole, least_pct = self._ns(category), self._whole, _LOST[category][0]
        if category in _BESIDE_COMPUTE and any(rank.lacks_device_rows for rank in self.job.ranks):
            return False  # the host's calls, not the transfers
        lost = ns - self.first_waits if category == EXPOSED_WAIT else ns
        if not whole.any() or 100 * ns.sum() < least_pct * whole.sum() or not holds_in_steps(lost, whole, least_pct):
            return False
        unprofiled = unprofiled_share(self.job, _DATA_WAIT, least_pct) if category == _LOADER else None
        return unprofiled is None or unprofiled.exceeds

    def _finding(self, category: str, beside: str) -> Finding:
        ns = self._ns(category)
        mean_ns, saving = float(ns.mean()), self._saving(category)
        of_job = job_gain(self.job, HiddenComm()) if category == EXPOSED_TRANSFER else None
        is_vain = saving is not None and saving.most_ns < _LEAST_SAVED * self._whole.mean()
        gain = (0, round(mean_ns)) if saving is None else (saving.least_ns, saving.most_ns)
        if of_job is not None:
            gain, is_vain = (0, of_job.saved_ns[1]), of_job.is_nothing  # as much as is hidden
            says = f": {self._meaning(category)}; hidden, they save {of_job.of_step}"
        elif saving is None:
            says = f": {self._meaning(category)}"
        elif is_vain:
            says = f", but {self._saves(category, saving)}: something else limits the step"
        else:
            says = f": {self._meaning(category)}; {self._saves(category, saving)}"
        time = f"{format_value(mean_ns, Unit.NS)} {per_step(self.job.ranks[0].steps)}"
        share = format_value(100 * float(ns.sum() / self._whole.sum()), Unit.PERCENT)
        where = f"{self._basis}{self._in_first(category)}{beside}"
        text = f"{category_term(category)}, {time}{in_brackets(share, range_of_steps(ns))}{where}{says}"
        places = host_words(self.host_causes, mean_ns, makes_own_batches=self.makes_own_batches)
        is_alone = len(self.job.ranks) < self.job.ranks[0].world_size  # its waits would be others' transfers
        is_known = category not in (EXPOSED_WAIT, _EXPOSED) or (saving is not None and not is_alone)
        return found(
            category,
            "low" if is_vain else "medium",
            text,
            round(mean_ns),
            lead=f"{category_term(category)}, {share}: {self._remedy(category)}",
            evidence=places if category == _HOST_BOUND else "" if is_known else time,
            gain=gain if is_known else None,
        )

    def _remedy(self, category: str) -> str:
        if category == _LOADER and self.makes_own_batches:
            return _MAKES_OWN
        if category == _EXPOSED and self.job.ranks and self.job.ranks[0].world_size > len(self.job.ranks):
            return "traces of all ranks tell waiting from transfer"
        return _LOST[category][2]

    def _limits(self) -> tuple[Finding, ...]:
        """Return what takes most of the step, of which no part is a loss."""
        if any(rank.lacks_device_rows for rank in self.job.ranks):
            return self._most_of_host()
        for category, (code, bound, where) in _COMPUTING.items():
            if self._is_most(category, _COMPUTING_PCT):
                only = [] if self._waits_untraced() else [f"only less or faster work {where} saves much"]
                return (self._most(category, code, bound, [*only, *self._what_computes(), *self._most_at()]),)
        in_ops = TimeCategory.CPU_COMPUTE.name.lower()
        if self._is_most(in_ops, _MOST_PCT) and (self._longest_is_most() or self._most_at()):
            return (self._most(in_ops, *_COMPUTING[in_ops][:2], [*self._what_computes(), *self._most_at()]),)
        if self._is_most(_PYTHON, _PYTHON_PCT) and all(self.host_causes):
            ns = float(self._ns(_PYTHON).mean())
            places = host_words(self.host_causes, ns, makes_own_batches=self.makes_own_batches) or "in no op"
            ops = (
                []
                if self._is_most(_PYTHON, _MOST_PCT)
                else [f"its ops, {words}" for words in self._what_computes()[:1]]
            )
            return (self._most(_PYTHON, "python_bound", "Python between ops", [places, *ops]),)
        return ()

    def _waits_untraced(self) -> bool:
        """Whether unprofiled steps lose what traced ones need not show: waits for the loader, or for cores."""
        loading = unprofiled_share(self.job, _DATA_WAIT, _LOST[_LOADER][0])
        return (loading is not None and loading.exceeds) or any(core_findings(self.job))

    def _longest_is_most(self) -> bool:
        """Whether one op takes most of the step."""
        longest_ns = max((each.ns for each in self.work), default=0.0)
        return 100 * longest_ns >= _MOST_PCT * float(self._whole.mean())

    def _most_at(self) -> list[str]:
        """Return the smallest place, a line or a module, whose ops take most of the step, where no one op does."""
        places = [*self._places_of_most("line"), *self._places_of_most("module")]
        if not places or self._longest_is_most():
            return []
        return [
            place_words(min(places, key=lambda place: (place.mean_ns, -len(place.name))), float(self._whole.mean()))
        ]

    def _most_of_host(self) -> tuple[Finding, ...]:
        """Return the op with most of the host's time, where no trace has the rows of its device."""
        ops = self._places_of_most("op")
        if not ops or any(rank.has_device for rank in self.job.ranks):
            return ()
        op, whole_ns = ops[0], float(self._whole.mean())
        time = f"{format_value(op.mean_ns, Unit.NS)} {per_step(self.job.ranks[0].steps)}"
        share = format_value(100 * op.mean_ns / whole_ns, Unit.PERCENT)
        place = next((each.place for each in self.work if each.name == op.name), "")
        once = ""
        if op.num > 1 and op.longest_ns >= _IN_ONE_CALL * op.total_ns:
            once = f", {format_value(op.longest_ns, Unit.NS)} of it in one of {op.num:,} calls"
        unknown = "how much of that waits for the device is not recorded, and neither is what the device does"
        if not op.asks_device:
            unknown = "it calls nothing of the device, so the CPU computes it; try to do that on the device"
        text = f"the host is longest in {op.name}{place}, {time} ({share}){self._basis}{once}; {unknown}"
        lead = (
            f"the host is longest in {op.name}, {share}: {unknown if not op.asks_device else 'record the device, too'}"
        )
        return (found("host_op", "low", text, round(op.mean_ns), lead=lead),)

    def _places_of_most(self, kind: PlaceKind) -> list[HostPlace]:
        """Return the places of a kind that take most of the step, the longest first."""
        return [
            place
            for place in self.places
            if place.kind == kind and len(place.ns) and holds_in_steps(place.ns, self._whole, _MOST_PCT)
            if 100 * place.mean_ns >= _MOST_PCT * float(self._whole.mean())
        ]

    @property
    def _basis(self) -> str:
        """` in these 3 traced steps, 2.13x unprofiled ones`: where the times of a recording are from."""
        is_marked = self.job.ranks[0].steps.marked
        return f" {in_traced_steps(self.job)}{much_longer_words(self.job)}" if is_marked else ""

    def _is_most(self, category: str, least_pct: float) -> bool:
        return holds_in_steps(self._ns(category), self._whole, least_pct)

    def _what_computes(self) -> list[str]:
        return what_computes(self.work, float(self._whole.mean()), self.job.ranks[0].device)

    def _most(self, category: str, code: str, what: str, says: Sequence[str]) -> Finding:
        """Return that a category takes most of the step, and what is known of it."""
        by_step = self._ns(category)
        ns = float(by_step.mean())
        time = f"{format_value(ns, Unit.NS)} {per_step(self.job.ranks[0].steps)}"
        share = in_brackets(format_value(100 * ns / float(self._whole.mean()), Unit.PERCENT), range_of_steps(by_step))
        percent = format_value(100 * ns / float(self._whole.mean()), Unit.PERCENT)
        text = f"{what}, {time}{share}{self._basis}: {'; '.join(says)}"
        lead = f"{what}, {percent}: only less or faster work there saves much"
        names = cut_apart(shown_names(self.work[:_NAMED]), _SHORT)
        shares = [format_value(100 * each.ns / float(self._whole.mean()), Unit.PERCENT) for each in self.work[:_NAMED]]
        evidence = f"longest: {', '.join(map(' '.join, zip(names, shares, strict=True)))}" if names else says[0]
        return found(code, "low", text, round(ns), lead=lead, evidence=evidence)

    def _beside(self, category: str) -> str:
        """Return `, beside 39 ms (81 %) of kernels, longest gemm 15 %` where these take longer than this; "" else.

        Without a device the longest op of the CPU, beside the data loader: other waits can be part of an op.
        """
        longest, whole_ns = next(iter(self.work), None), float(self._whole.mean())
        has_kernels = any(rank.has_device for rank in self.job.ranks)
        is_told = has_kernels or (category == _LOADER and not any(rank.lacks_device_rows for rank in self.job.ranks))
        if longest is None or not is_told:
            return ""
        ns = float(self._ns(_COMPUTE).mean()) if has_kernels else longest.ns
        if ns <= self._ns(category).mean():
            return ""
        beside = f", beside {format_value(ns, Unit.NS)} ({format_value(100 * ns / whole_ns, Unit.PERCENT)})"
        if not has_kernels:
            return f"{beside} in {longest.name}{longest.place}"
        (name,) = shown_names([longest])
        if longest.ns > _NEARLY_ALL * ns:
            return f"{beside} of kernel {name}"
        return f"{beside} of kernels, longest {name} {format_value(100 * longest.ns / whole_ns, Unit.PERCENT)}"

    def _ns(self, category: str) -> NDArray[np.float64]:
        return self.by_step.get(category, np.zeros_like(self._whole))

    @property
    def _whole(self) -> NDArray[np.float64]:
        """float64[K] ns of each step without what is once."""
        recurring = [ns for category, ns in self.by_step.items() if category != _ONCE]
        return np.sum(recurring, axis=0) if recurring else np.zeros(0)

    def _transfer_bound(self) -> str:
        """Return how little of exposed communication is transfer, if all of a size take as long as the shortest.

        "" where that may be most of it.
        """
        if 2 * self.most_transfer_ns > self._ns(_EXPOSED).mean() or not any(rank.has_device for rank in self.job.ranks):
            return ""
        time = format_value(self.most_transfer_ns, Unit.NS)
        of_size = f"if each transfers as long as the shortest of its size, that is at most about {time} of it"
        return f"collectives run while nothing computes; {of_size}, and traces of all ranks tell which is late"

    def _meaning(self, category: str) -> str:
        """Return what the category is time of, and what of it is none, or may not be."""
        mean_ns = float(self._ns(category).mean())
        meaning = _LOST[category][1]
        waits = self.job.waits
        if category == _EXPOSED and (waits.complete & ~waits.possible).any():
            meaning = "collectives run while nothing computes; their durations do not tell waiting from transfer"
        elif category == _EXPOSED:
            meaning = self._transfer_bound() or meaning
        if category == _COPIES and 2 * sum(self.device_copies.values()) >= mean_ns:
            meaning = copies_of_device_words(dict(self.device_copies))
        if category == _LOADER and self.makes_own_batches:
            meaning = _MAKES_OWN
        if category == _HOST_BOUND:
            places = host_words(self.host_causes, mean_ns, makes_own_batches=self.makes_own_batches)
            unknown = " (its ops are not recorded)" if lack_host_ops(self.host_causes) else ""
            meaning = f"the device waits for the host: {places}" if places else f"{meaning}{unknown}"
        unrecorded = self._ns(TimeCategory.UNRECORDED.name.lower())
        is_unsure = category in (*_BESIDE_COMPUTE, _HOST_BOUND)
        if is_unsure and unrecorded.sum() > MOST_UNRECORDED * self._whole.sum():
            time = f"{format_value(float(unrecorded.mean()), Unit.NS)} {per_step(self.job.ranks[0].steps)}"
            meaning = f"{meaning}; it may be less, as work that the trace does not show runs for {time}"
        return meaning

    def _in_first(self, category: str) -> str:
        """Return how much of exposed waits is in first collectives, where that is notable; "" elsewhere."""
        first_ns = float(self.first_waits.mean()) if category == EXPOSED_WAIT else 0.0
        if not first_ns or first_ns < _NOTABLE_FIRST * self._ns(category).mean():
            return ""
        return f", {format_value(first_ns, Unit.NS)} of it in a first collective, where profilers start apart"

    def _saving(self, category: str) -> Saving | None:
        """Return what replay saves without the category, mean of ranks; None if unknown."""
        savings = self.saved.get(category, ())
        if not savings:
            return None
        ends = zip(*((saving.least_ns, saving.most_ns) for saving in savings), strict=True)
        least, most = (round(float(np.mean(ns))) for ns in ends)
        return Saving(least, most)

    def _of_ranks(self, category: str) -> str:
        """Return `, mean of ranks`, or of which part of them it is known; "" for a single rank."""
        num, num_ranks = len(self.saved[category]), len(self.job.ranks)
        if num < num_ranks:
            return f", {'mean ' * (num > 1)}of {num} of {num_ranks} ranks, not known of the others"
        return ", mean of ranks" * (num_ranks > 1)

    def _saves(self, category: str, saving: Saving) -> str:
        own_ns, on_rank, of_ranks = float(self._ns(category).mean()), "", self._of_ranks(category)
        if self.last is not None:
            own_ns, of_ranks = self.last_ns.get(category, 0.0), ""
            rank = f"on rank {self.last}, which waits least for others, the first collective aside,"
            time = format_value(own_ns, Unit.NS)
            on_rank = f" {rank} and has {time} of it" if and_followers(saving, own_ns) else f" of {time} {rank}"
        basis = f"{replay_term(self.job)}{of_ranks}{and_followers(saving, own_ns)}"
        return f"{FREE[category]} saves {saving_words(saving, float(self._whole.mean()))}{on_rank} ({basis})"
