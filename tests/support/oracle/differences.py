"""Where ranks first issue different collectives, and who never arrived, from files of ranks or dumps, call by call."""

from __future__ import annotations

import json
import pickle
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from .collectives import NAMES, find_calls, num_elements
from .reader import integer, read

__all__ = ["Difference", "Stuck", "difference_of_dumps", "difference_of_files", "stuck_in"]

DTYPES = {"float": "float32", "double": "float64", "half": "float16", "bfloat16": "bfloat16", "int": "int32"}
DTYPES |= {"long": "int64"}


@dataclass(frozen=True)
class Call:
    """A collective that a rank issues; `time` is when."""

    name: str
    dtype: str
    elements: int
    time: int

    @property
    def words(self) -> str:
        return f"{self.name} {self.dtype} x {self.elements:,}"


Sequences = dict[tuple[str, int | None], dict[int, Call]]
"""Of one rank: by group, and step if there are, its calls by their place from 1, else by number."""


@dataclass(frozen=True)
class Difference:
    """The first place of a group at which ranks differ: by `how` and what they issue there, the ranks."""

    group: str
    step: int | None
    place: int
    ranks: dict[tuple[str, str], list[int]]


def difference_of_files(paths: Sequence[Path]) -> Difference | None:
    """Of whole windows: the first of all groups, by the time of the calls; None where all ranks agree."""
    return first_difference({integer(read(path).meta["distributedInfo"]["rank"]): of_steps(path) for path in paths})


def of_steps(path: Path) -> Sequences:
    trace, sequences = read(path), defaultdict[tuple[str, int | None], dict[int, Call]](dict)
    for name, event in sorted(find_calls(trace)[1], key=lambda pair: pair[1].start):
        step = next(int(text.partition("#")[2]) for text, a, b in trace.host_steps if a <= event.start < b)
        of_step = sequences[str(event.args.get("process group name", "")), step]
        dtype = DTYPES[str(event.args["dtype"]).lower()]
        of_step[len(of_step) + 1] = Call(name, dtype, num_elements(event), event.start)
    return sequences


def difference_of_dumps(folder: Path) -> Difference | None:
    return first_difference({rank: by_number(entries) for rank, (entries, _) in dumps_in(folder).items()})


def by_number(entries: list[dict[str, Any]]) -> Sequences:
    sequences = defaultdict[tuple[str, int | None], dict[int, Call]](dict)
    for entry in entries:
        name = NAMES[entry["profiling_name"].rpartition(":")[2].replace("_", "")]
        size = max(sum(map(prod, entry[key])) for key in ("input_sizes", "output_sizes"))
        call = Call(name, DTYPES[entry["input_dtypes"][0].lower()], size, entry["time_created_ns"])
        sequences[entry["process_group"][0], None][entry["collective_seq_id"]] = call
    return sequences


def first_difference(of_rank: Mapping[int, Sequences]) -> Difference | None:
    differences = []
    keys = {key for sequences in of_rank.values() for key in sequences}
    for key in keys:
        places = sorted({place for sequences in of_rank.values() for place in sequences.get(key, ())})
        for place in places:
            here = {rank: sequences.get(key, {}).get(place) for rank, sequences in of_rank.items()}
            missing = [rank for rank, call in here.items() if call is None and is_covered(of_rank[rank], key, place)]
            calls = [call for call in here.values() if call is not None]
            if missing or len({call.words for call in calls}) > 1:
                differences.append((min(call.time for call in calls), key, place, missing))
                break
    if not differences:
        return None
    _, key, place, missing = min(differences)
    taking_part = [rank for rank in sorted(of_rank) if rank in missing or place in of_rank[rank].get(key, {})]
    tails = {rank: tail(of_rank[rank].get(key, {}), place) for rank in taking_part}
    usual, ranks = majority(list(tails.values())), defaultdict[tuple[str, str], list[int]](list)
    for rank, calls_from_there in tails.items():
        issued = of_rank[rank].get(key, {}).get(place)
        ranks[manner(calls_from_there, usual), issued.words if issued else "nothing"].append(rank)
    return Difference(key[0], key[1], place, dict(ranks))


def is_covered(sequences: Sequences, key: tuple[str, int | None], place: int) -> bool:
    """Whether a rank's window holds a place: a step before its last, or a number between its first and last."""
    step = key[1]
    if step is None:
        numbers = sequences.get(key, {})
        return bool(numbers) and min(numbers) <= place <= max(numbers)
    return step < max(each for _, each in sequences if each is not None)


def tail(calls: dict[int, Call], place: int) -> tuple[str, ...]:
    return tuple(calls[each].words for each in sorted(calls) if each >= place)


def majority(tails: list[tuple[str, ...]]) -> tuple[str, ...] | None:
    """What over half of the ranks issue first, and most of these from there on."""
    first, count = Counter(each[:1] for each in tails).most_common(1)[0]
    if 2 * count <= len(tails):
        return None
    return Counter(each for each in tails if each[:1] == first).most_common(1)[0][0]


def manner(calls: tuple[str, ...], usual: tuple[str, ...] | None) -> str:
    """How calls differ from the usual ones: by the edit that makes them of these."""
    if usual is None or calls[:1] == usual[:1]:
        return ""
    edits = {
        "swapped": (*usual[1:2], *usual[:1], *usual[2:]),
        "different": (*calls[:1], *usual[1:]),
        "missing": usual[1:],
        "extra": (*calls[:1], *usual),
    }
    return next((how for how, edited in edits.items() if edited == calls), "different")


@dataclass(frozen=True)
class Stuck:
    """The first collective of a group that never completed: `ranks` by state, and what absent ones issued last."""

    group: str
    number: int
    name: str
    ranks: dict[str, list[int]]
    last: dict[int, str]


def stuck_in(folder: Path) -> Stuck:
    """Of the only group of pickled dumps."""
    dumps = dumps_in(folder)
    (group, members) = next(
        (entry["process_group"][0], config[entry["process_group"][0]]["ranks"])
        for entries, config in dumps.values()
        for entry in entries
    )
    pending = [e for entries, _ in dumps.values() for e in entries if e["state"] in ("scheduled", "started")]
    number = min(entry["collective_seq_id"] for entry in pending)
    ranks, last = defaultdict[str, list[int]](list), {}
    for rank in json.loads(members):
        if rank not in dumps:
            ranks["no dump"].append(rank)
            continue
        of_number = {entry["collective_seq_id"]: entry for entry in dumps[rank][0]}
        before = [each for each in of_number if each < number]
        if number in of_number:
            ranks[of_number[number]["state"]].append(rank)
        elif any(each > number for each in of_number):
            ranks["completed"].append(rank)
        else:
            ranks["never arrived"].append(rank)
            last[rank] = f"{words(of_number[max(before)])} {max(before)}" if before else ""
    name = next(words(entry) for entry in pending if entry["collective_seq_id"] == number)
    return Stuck(group, number, name, dict(ranks), last)


def words(entry: dict[str, Any]) -> str:
    text = entry["profiling_name"].rpartition(":")[2]
    return NAMES.get(text.replace("_", ""), text)


def dumps_in(folder: Path) -> dict[int, tuple[list[dict[str, Any]], dict[str, Any]]]:
    """Rank -> (entries, groups by name)."""
    dumps = {}
    for path in folder.glob("nccl_trace_rank_*"):
        dump = pickle.loads(path.read_bytes())
        dumps[int(path.name.rpartition("_")[2])] = dump["entries"], dump["pg_config"]
    return dumps
