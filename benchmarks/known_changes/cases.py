"""Cases on disk: a folder per source and kind of change, with `a`, `b` and `truth.json`; made once."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import json
import os
import shutil
import signal
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from itertools import product
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from known_changes.jobs import JOB_KINDS, Job
from known_changes.kinds import KINDS, Edit
from known_changes.recording import Change, Doc, Recording, Tools, UnsuitableSource
from known_changes.rewriting import REWRITTEN, SHARES, fused, renamed, rewritten, unchanged

SOURCES = (
    *("ddp-a100/rank0", "nanogpt-h100-8r/rank4", "dlrm-v100-8r/rank0", "hta-diff/control-a100-rank3"),
    *("torchrec-v100-straggler-4r/rank0", "resnet50-2021/workers0", "ep-moe-b200-ab/ref", "qwen-h100/qwen1.5-0.5b"),
    *(f"nanogpt-h100-8r/rank{rank}" for rank in (0, 1, 2, 3, 5, 6, 7)),
    *("dlrm-v100-8r/rank3", "dlrm-v100-8r/rank6", "torchrec-v100-straggler-4r/rank2"),
    *("torchrec-v100-straggler-4r/rank3", "torchrec-v100-ab/a/rank0", "torchrec-v100-ab/a/rank3"),
    *("torchrec-v100-ab/b/rank2", "hta-diff/test-v100-rank1", "hta-groups/sampled-rank0", "ep-moe-b200-ab/syncless"),
    *("resnet-ddp-mi300/rank0", "resnet50-2021/workers4", "resnet50-2021/bare-array"),
    *("inference/sglang-prefill-decode-mi300", "inference/vllm-piecewise-mi300", "owlv2/h100", "owlv2/mi300"),
    *("sam-a100-ab/compile_false", "sam-a100-ab/compile_true"),
)
"""Traces of one rank; the first eight are those that the causes were developed on."""

NUM_DEVELOPED = 8

JOBS = ("nanogpt-h100-8r", "torchrec-v100-straggler-4r", "torchrec-v100-ab/a")
HELD_OUT_JOBS = ("torchrec-v100-ab/b", "dlrm-v100-8r")
"""Folders with the traces of all ranks of a job."""

LARGE = ("sam-a100-ab", "owlv2")
LARGE_KINDS = ("item", "devsync", "sleep", "kx")
"""Traces of more than 130,000 events, and the few kinds of changes that they get."""

IN_OTHER_CODE = ("item", "devsync", "sleep", "kx", "removed")
"""Kinds of changes that are also made to code that is rewritten, or whose names are others, in B."""


@dataclass(frozen=True, slots=True)
class Truth:
    """What a case changes, or why its source is unsuitable for it."""

    source: str
    kind: str
    changes: tuple[Change, ...] = ()
    unsuitable: str = ""

    @classmethod
    def load(cls, case: Path) -> Truth:
        """Return the truth of a case's folder."""
        content = json.loads((case / "truth.json").read_text(encoding="utf-8"))
        changes = content.pop("changes")
        return cls(**content, changes=tuple(Change(**{k: _tupled(v) for k, v in one.items()}) for one in changes))


def _renamed(make: Callable[[], Edit], percent: int, seed: str) -> Edit:
    return renamed(make(), percent, seed)


def _rewritten(make: Callable[[], Edit], kind: str) -> Edit:
    return rewritten(make(), kind)


def _tupled(value: object) -> Any:
    return tuple(value) if isinstance(value, list) else value


def held_out() -> tuple[str, ...]:
    """Return the third of the sources that is set aside: of each family those whose names have the least hashes.

    Families of fewer than three sources count as one family; sources that causes were developed on are never set aside.
    """
    size = Counter(source.split("/")[0] for source in SOURCES)
    families = defaultdict(list)
    for source in SOURCES:
        name = source.split("/")[0]
        families[name if size[name] >= 3 else ""].append(source)
    chosen: set[str] = set()
    for sources in families.values():
        unseen = [source for source in sources if source not in SOURCES[:NUM_DEVELOPED]]
        unseen.sort(key=lambda source: hashlib.sha256(source.encode()).hexdigest())
        chosen.update(unseen[: round(len(sources) / 3)])
    return (*(source for source in SOURCES if source in chosen), *HELD_OUT_JOBS)


def kinds_of(source: str) -> tuple[str, ...]:
    """Return the kinds of changes for a source, in the order in which they are made."""
    if source in JOBS or source in HELD_OUT_JOBS:
        return tuple(JOB_KINDS)
    if source.startswith(LARGE):
        return LARGE_KINDS
    renamed_kinds = (f"{kind}_{percent}" for kind in ("names", *IN_OTHER_CODE) for percent in SHARES)
    rewritten_kinds = (f"{kind}_{rewriting}" for kind in IN_OTHER_CODE for rewriting in REWRITTEN)
    return (*KINDS, "fused", *REWRITTEN, *rewritten_kinds, *renamed_kinds)


@contextlib.contextmanager
def cpu_limit(seconds: float) -> Iterator[None]:
    """Raise TimeoutError in the block once it has taken so much CPU time."""

    def stop(*_: object) -> None:
        raise TimeoutError(f"more than {seconds:g} s of CPU time")

    signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


@dataclass(eq=False)
class Cases:
    """All cases of one source, below `folder`."""

    tools: Tools
    source: str
    folder: Path

    @cached_property
    def edits(self) -> Mapping[str, Callable[[], Edit]]:
        """How each kind of change is made; reads the source."""
        if self.source in (*JOBS, *HELD_OUT_JOBS):
            job = Job(self.tools, self.source)
            return {kind: partial(job.edit, kind) for kind in JOB_KINDS}
        recording = Recording(self.tools, self.source)
        edits = {kind: partial(make, recording) for kind, make in {**KINDS, "fused": fused}.items()}
        nothing = partial(unchanged, recording)
        edits |= {rewriting: partial(_rewritten, nothing, rewriting) for rewriting in REWRITTEN}
        changes = {"names": nothing, **{kind: edits[kind] for kind in IN_OTHER_CODE}}
        for kind, rewriting in product(IN_OTHER_CODE, REWRITTEN):
            edits[f"{kind}_{rewriting}"] = partial(_rewritten, edits[kind], rewriting)
        for kind, percent in product(changes, SHARES):
            name = f"{kind}_{percent}"
            edits[name] = partial(_renamed, changes[kind], percent, f"{self.source} {name}")
        return edits

    def case(self, kind: str) -> Path:
        """Return the folder of a case."""
        return self.folder / self.source.replace("/", "-") / kind

    def ensure(self, kind: str, limit_s: float) -> Truth:
        """Make a case unless it is there; one that cannot be made is kept with the reason."""
        case = self.case(kind)
        if (case / "truth.json").exists():
            return Truth.load(case)
        case.parent.mkdir(parents=True, exist_ok=True)
        draft = Path(mkdtemp(prefix=f"{kind}.draft-", dir=case.parent))
        truth = Truth(self.source, kind)
        try:
            with cpu_limit(limit_s):
                edit = self.edits[kind]()
                self._write(edit, draft)
            truth = replace(truth, changes=edit.changes)
        except UnsuitableSource as reason:
            truth = replace(truth, unsuitable=str(reason))
        except Exception as error:  # noqa: BLE001 - the simulator may fail in any way
            truth = replace(truth, unsuitable=f"failed: {error!r}")
        (draft / "truth.json").write_text(json.dumps(asdict(truth)), encoding="utf-8")
        if case.exists():  # another process made it meanwhile
            shutil.rmtree(draft)
        else:
            draft.rename(case)
        return truth

    def _write(self, edit: Edit, draft: Path) -> None:
        for side, ranks in (("a", edit.a), ("b", edit.b)):
            for rank, doc in ranks.items():
                self._save(doc, draft / side / f"rank{rank}.json.gz")
        for name, doc in edit.others.items():
            self._save(doc, draft / name / "rank0.json.gz")

    def _save(self, doc: Doc, path: Path) -> None:
        """Write a trace; equal ones share their bytes on disk."""
        content = json.dumps(doc).encode()
        shared = self.folder / "traces" / f"{hashlib.sha256(content).hexdigest()[:24]}.json.gz"
        if not shared.exists():
            shared.parent.mkdir(exist_ok=True)
            draft = shared.with_suffix(f".{os.getpid()}")
            draft.write_bytes(gzip.compress(content, 1))
            draft.rename(shared)
        path.parent.mkdir(exist_ok=True)
        os.link(shared, path)
