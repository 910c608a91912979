"""Inputs whose answers are recorded: traces, ranks, recordings and pairs, of this checkout and beside it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from paths import FIXTURES, SHARED

__all__ = ["Question", "questions"]

_PLACES = {"fixtures": FIXTURES, "traces": SHARED / "traces", "reports": SHARED / "reports" / "traces"}
_PAIRS = (
    ("traces/torchrec-v100-ab/a", "traces/torchrec-v100-ab/b"),
    ("traces/torchrec-v100-ab/a/rank0.json.gz", "traces/torchrec-v100-ab/b/rank0.json.gz"),
    ("traces/torchrec-v100-ab/a", "traces/torchrec-v100-straggler-4r"),
    ("traces/ep-moe-b200-ab/ref.json.gz", "traces/ep-moe-b200-ab/syncless.json.gz"),
    ("traces/ep-moe-b200-ab/syncless.json.gz", "traces/ep-moe-b200-ab/ref.json.gz"),
    ("traces/sam-a100-ab/compile_false.json.gz", "traces/sam-a100-ab/compile_true.json.gz"),
    ("traces/resnet50-2021/workers0.json.gz", "traces/resnet50-2021/workers4.json.gz"),
    ("traces/owlv2/h100.json.gz", "traces/owlv2/mi300.json.gz"),
    ("traces/hta-diff/control-a100-rank3.json.gz", "traces/hta-diff/test-v100-rank1.json.gz"),
    ("traces/nanogpt-h100-8r/rank0.json.gz", "traces/nanogpt-h100-8r/rank1.json.gz"),
    ("traces/dlrm-v100-8r/rank0.json.gz", "traces/dlrm-v100-8r/rank3.json.gz"),
    ("reports/window-first.json.gz", "reports/window-last.json.gz"),
    ("reports/copies-pageable-nonblocking.json.gz", "reports/copies-pinned-async.json.gz"),
    ("fixtures/kinds/inference.json", "fixtures/kinds/inference_slower.json"),
    ("fixtures/kinds/snapshot.pickle", "fixtures/kinds/snapshot_longer.pickle"),
    ("fixtures/strategies/fsdp2.json.gz", "fixtures/strategies/fsdp2_kept.json.gz"),
    ("fixtures/strategies/ddp.json.gz", "fixtures/strategies/ddp_unused.json.gz"),
    ("fixtures/example/job", "fixtures/example/uneven"),
    ("fixtures/outlier_ab/off", "fixtures/outlier_ab/on"),
    ("fixtures/outlier_ab/on", "fixtures/outlier_ab/deferred"),
)


@dataclass(frozen=True, slots=True)
class Question:
    """A command on inputs, which are named from the folder that they are in: `traces/mtia/rank0.json.gz`."""

    command: str
    inputs: tuple[str, ...]

    @property
    def name(self) -> str:
        """The command and its inputs, as they are typed."""
        return " ".join((self.command, *self.inputs))

    @property
    def paths(self) -> tuple[Path, ...]:
        """Where the inputs lie; they need not exist."""
        return tuple(_path(each) for each in self.inputs)


def questions() -> list[Question]:
    """Return a question per command and input of this machine, those of the largest inputs first."""
    singles = sorted(set(_singles()))
    all_questions = [Question(command, (each,)) for each in singles for command in _commands(each)]
    all_questions += [Question("diff", pair) for pair in _PAIRS if all(_path(each).exists() for each in pair)]
    all_questions.append(Question("diff", ("fixtures/outlier_ab",)))
    return sorted(all_questions, key=lambda each: (-sum(map(_size, each.paths)), each.name))


def _singles() -> Iterator[str]:
    for place, root in _PLACES.items():
        for path in root.rglob("*"):
            name = f"{place}/{path.relative_to(root).as_posix()}"
            if path.name.endswith((".json", ".json.gz", ".pickle")) and path.name != "run.json":
                yield name
                if "rank0." in path.name and any(path.parent.glob("rank1.*")):
                    yield name.rpartition("/")[0]


def _commands(name: str) -> tuple[str, ...]:
    return ("show",) if name.endswith(".pickle") else ("show", "whatif", "check")


def _path(name: str) -> Path:
    place, _, inside = name.partition("/")
    return _PLACES[place] / inside


def _size(path: Path) -> int:
    return sum(each.stat().st_size for each in path.rglob("*")) if path.is_dir() else path.stat().st_size
