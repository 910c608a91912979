"""Sections of a page: their titles in the order of the page, each with how to read it, and those that are drawn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from traceq.renderers.html.markup import element, folded, paragraphs
from traceq.report import Report


@dataclass(frozen=True, slots=True)
class Section:
    """Title of a section, and one line on how to read it."""

    title: str
    reading: str = ""


SECTIONS = {
    "stalled": Section("Ranks that gave up", "What each rank was in when the job stopped."),
    "desync": Section("Ranks that disagree", "Collectives that the ranks do not issue in the same order or shape."),
    "arrivals": Section("Who arrives at the collective that hangs", "Ranks that are missing are the ones to look at."),
    "batches": Section("The largest batch that fits", "Throughput of each batch until memory runs out."),
    "loader": Section("The data loader alone", "Time of a batch without the step that consumes it."),
    "step_profile": Section(
        "Phases of an unprofiled step", "Measured without the profiler: these durations are the ones to quote."
    ),
    "step_kinds": Section(
        "Prefill and decode", "Traced steps by what they compute, with their spread; the profiler slows them."
    ),
    "facts": Section("What the recipe measured besides time", "One row per arm."),
    "arms": Section("Arms of the recording", "What was compared, and how each arm ran."),
    "unprofiled": Section("Unprofiled steps of all arms", "Measured in turns, without the profiler."),
    "inference": Section("Prefill and decode by batch size", "Time per step and per token, by kind and batch size."),
    "partition": Section(
        "Where the time of a step goes",
        "Every nanosecond of a step belongs to one phase and one category, so that a row adds up to its total.",
    ),
    "steps": Section(
        "Duration of each step", "An even row of points is a steady job; a point far above is a slow step."
    ),
    "syncs": Section(
        "Where the host waits for the device",
        "Each row is a line that blocks the host; the replay says what removing it saves.",
    ),
    "collectives": Section(
        "What the ranks exchange", "Exposed time is on the step's path; the rest runs while something computes."
    ),
    "ranks": Section(
        "Which rank the others wait for", "A rank that waits little, while others wait for it, is the late one."
    ),
    "clusters": Section(
        "Ranks side by side", "A stronger cell is a rank that takes longer than the median rank in that phase."
    ),
    "compiling": Section("What is compiled", "A function that is compiled in every step costs every step."),
    "idle": Section("Why the device idles", "Gaps without device work, by what the host did meanwhile."),
    "replay": Section(
        "What removing a wait would save", "The recorded step replayed without one kind of time: what it saves."
    ),
    "critical": Section(
        "The critical path", "The chain of work that sets the length of a step; only what is on it can shorten it."
    ),
    "efficiency": Section(
        "How much of the device is used",
        "Points far below their roof have room to be faster; larger ones take more time.",
    ),
    "kernels": Section("Kernels that take the most time", "Time on the device, summed over calls."),
    "lines": Section("Time by line of Python", "The host is at the line, and the device does what it launches there."),
    "modules": Section("Time by module", "A module includes those inside it, and the backward pass of each."),
    "host": Section("Python and ops that take the host's time", "Self time: without the ops inside."),
    "memcpy": Section("Copies", "Copies that run under kernels cost nothing; the rest is on the step's path."),
    "memory": Section("Memory by phase", "The peak is what must fit; growth is what a phase leaves behind."),
    "memory_moments": Section("Memory at the moments that matter", "Who holds memory at the peak, and at the end."),
    "memory_kinds": Section("What the memory holds", "Parameters, gradients, activations and the rest."),
    "memory_lines": Section("Lines that hold the memory", "Where the allocations of the largest share were made."),
    "memory_reserved": Section("Reserved, and not in use", "Memory that the allocator holds between allocations."),
    "phases": Section("Phases", "Host and device time of each phase."),
    "perturbation": Section("What the profiler costs", "How much slower a step is while it is profiled."),
    "strategy": Section(
        "Does the strategy explain the collectives?",
        "Counts and sizes that the strategy predicts, beside those recorded.",
    ),
    "pipeline": Section("Pipeline stages", "A stage idles while it waits for its neighbours."),
    "experts": Section("Load of experts", "Ranks whose experts get more tokens make the others wait."),
    "devices": Section("Devices", "Ranks that share or change devices."),
    "dataload": Section("Waiting for data", "Time in which the step waits for the data loader."),
    "duplicates": Section("Work that is done twice", "The same op on the same shapes, where once would do."),
    "launches": Section("Launches of kernels", "Time from the launch to the start on the device."),
    "optimizer": Section("Optimizer", "Kernels per step that update the parameters."),
    "metric_gathers": Section("Collectives of metrics", "Exchanges that report and do not train."),
    "coverage": Section("What the trace covers", "Events that could be read and attributed."),
}

_TIMELINE = Section(
    "A step over time",
    "What every phase, stream and thread did; a click on a linked sync, finding or cause leads here.",
)
_FLAME = Section(
    "Where the host's time goes", "Each frame is as wide as its time per step, and holds what ran inside it."
)


def drawn_sections(timeline: str, flame: str, doubt: str = "") -> tuple[tuple[str, Section, list[str]], ...]:
    """Return (id, title, parts) of the sections, given the figures in them.

    `doubt` says why durations of traced steps are no evidence: it stands above the timeline, and folds the flame view,
    which colours them.
    """
    if doubt:
        flame = folded("Durations of the traced steps, which are no evidence here", flame, of="doubt")
    noted = [paragraphs([doubt], "note")] if doubt else []
    return ("timeline", _TIMELINE, [*noted, timeline]), ("flame", _FLAME, [flame])


def drawn_section(name: str, section: Section, *inside: str) -> str:
    """Return a section as markup, with its title and how to read it."""
    reading = paragraphs([section.reading] if section.reading else [], "reading")
    return element("section", element("h2", escape(section.title)), reading, *inside, id=name)


def section_of(report: Report) -> Section:
    """Return the section of a report; one of a plugin is titled by its first table, or by its name in words."""
    title = report.views[0].title if report.views else ""
    is_by_kind = any(view.key == "step_kinds" for view in report.views)
    return SECTIONS.get("step_kinds" if is_by_kind else report.name) or Section(
        title or report.name.replace("_", " ").capitalize()
    )


def in_order(reports: Sequence[Report]) -> list[Report]:
    """Return the reports in the order of the page, those of plugins last."""
    order = {name: place for place, name in enumerate(SECTIONS)}
    return sorted(reports, key=lambda report: order.get(report.name, len(order)))
