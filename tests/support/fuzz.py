"""`make fuzz`: both readers on damaged traces for some minutes; what they read differently is kept in tests/corpus.

The values of events that `traceq.interop` reads are held to what `json` makes of the same file.

First come files that were made to exhaust a reader, 100 MB each. Then hypothesis draws traces, and bytes of those and
of the corpus are cut, doubled and overwritten at random. What the process takes at most is held to MOST_MB. With
--library a build of the scanner under sanitizers is loaded in the place of the installed one.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import resource
import sys
import time
import warnings
from importlib.machinery import ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from tempfile import TemporaryDirectory

from paths import CORPUS

MOST_MB = 1500  # resident; the sanitizers' own share included


def load(library: Path) -> None:
    """Put this build of the scanner in the place of the installed one."""
    name = "traceq.kineto._scan"
    spec = spec_from_file_location(name, library, loader=ExtensionFileLoader(name, str(library)))
    assert spec is not None
    assert spec.loader is not None
    sys.modules[name] = module = module_from_spec(spec)
    spec.loader.exec_module(module)
    import traceq.kineto

    traceq.kineto._scan = module  # type: ignore[attr-defined]


def seeds(count: int) -> list[bytes]:
    """Traces to damage: drawn ones, and the corpus."""
    from generated import sound

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # hypothesis would have one draw in tests only
        return [sound().example() for _ in range(count)] + [path.read_bytes() for path in sorted(CORPUS.iterdir())]


def mutate(content: bytes, other: bytes, dice: random.Random) -> bytes:
    """A few places cut, repeated, flipped, overwritten with junk or with a piece of another trace."""
    from generated import JUNK

    for _ in range(dice.choice([0, 1, 1, 1, 2, 5])):
        index, size = dice.randrange(len(content) + 1), dice.choice([0, 0, 1, 2, 8, 60, len(content)])
        there = dice.randrange(len(other) + 1)
        flipped = bytes(byte ^ 1 << dice.randrange(8) for byte in content[index : index + 1])
        new = dice.choice(
            [
                b"",
                dice.choice(JUNK),
                dice.choice(JUNK),
                flipped,
                content[index : index + 99] * 2,
                other[there : there + 200],
            ]
        )
        content = content[:index] + new + content[index + size :]
    return content


def differs(path: Path, *, window: int = 0, chunk: int = 0) -> str:
    """What the readers do not agree on; empty where they do."""
    from readers import assert_same, outcome, reading

    with reading("native", window=window, chunk=chunk):
        result = outcome(path)
    with reading("python"):
        expected = outcome(path)
    try:
        assert_same(result, expected)
    except AssertionError as fault:
        return f"window {window}, chunk {chunk}: {fault}"
    return ""


def misread(path: Path) -> str:
    """Why the values of its events, if they are read, cannot be those of the file; empty if they can, or are not."""
    from traceq.errors import UnreadableInput
    from traceq.kineto.event_values import read_event_values

    try:
        values = read_event_values(path, ("bytes", "Input Dims", "stream"))
    except UnreadableInput:
        return ""
    if values is None:
        return ""
    try:
        num_events = len(json.loads(path.read_bytes().decode(errors="replace"), strict=False)["traceEvents"])
    except ValueError as fault:
        in_skipped_text = "Invalid \\" in str(fault)  # an escape, in a value that nobody asked for
        return "" if in_skipped_text else f"values of a file that is no JSON: {fault}"
    return "" if values.num_events == num_events else f"values of {values.num_events} events of {num_events}"


def exhaust(folder: Path) -> int:
    """Read the hostile files; how many were read differently."""
    import hostile

    faults = 0
    for kind in hostile.KINDS:
        path = hostile.write(folder / kind, kind, 100 << 20)
        reason = differs(path)
        faults += bool(reason)
        print(f"{kind}, 100 MB: {reason or 'read alike'}; peak {peak_mb()} MB", flush=True)  # noqa: T201
    return faults


def peak_mb() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 2**32)
    parser.add_argument("--library", type=Path)
    options = parser.parse_args()
    if options.library:
        load(options.library)
    dice, done = random.Random(options.seed), 0
    with TemporaryDirectory() as folder:
        path, faults = Path(folder) / "trace.json", exhaust(Path(folder))
        end = time.monotonic() + 60 * options.minutes
        while time.monotonic() < end:
            pool = seeds(30)
            for _ in range(5000):
                content = mutate(dice.choice(pool), dice.choice(pool), dice)
                path.write_bytes(content)
                window, chunk = dice.choice([64, 1 << 10, 1 << 17]), dice.choice([1, 37, 1 << 10, 1 << 14])
                done += 1
                if reason := differs(path, window=window, chunk=chunk) or misread(path):
                    faults += 1
                    kept = CORPUS / f"found-{hashlib.sha1(content).hexdigest()[:10]}.json"
                    kept.write_bytes(content)
                    print(f"{kept}: {reason}", flush=True)  # noqa: T201
                if time.monotonic() > end:
                    break
    print(f"{done:,} traces, {faults} read differently, seed {options.seed}, peak {peak_mb()} MB")  # noqa: T201
    return 1 if faults or peak_mb() > MOST_MB else 0


if __name__ == "__main__":
    sys.exit(main())
