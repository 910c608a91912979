"""Does the first screen name the cause that a public report names? Records the scripts of a folder, and reads leads.

    python benchmarks/reports.py FOLDER [--only NAME] [--times 3] [--steps 60] [--write]

A script is a reproduction of a public report; one whose header says `torchrun --nproc-per-node 2` runs so. What it
should be said to be is a row of `benchmarks/reports.toml`: a regular expression on codes, lines and words of the leads.
Prints for each recording whether the first lead, or one of the first three, is that; --write adds the codes that
fired to `tests/claims/recorded_jobs.json`, the evidence of rules about recordings.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from rich.console import Console
from rich.table import Table

from traceq.analysis.registry import sheet
from traceq.claims.claim import Claim
from traceq.claims.saying import evidence_of, lead_of
from traceq.errors import TraceqError
from traceq.report import MOST_LEADS, Sheet
from traceq.runs.read import read

ROOT = Path(__file__).parents[1]
EVIDENCE = ROOT / "tests" / "claims" / "recorded_jobs.json"
SECONDS = 300
TORCHRUN = ("torchrun", "--nproc-per-node", "2")


def recorded(script: Path, steps: int, folder: Path) -> Sheet | None:
    """Record a script and return what traceq says of it; None where nothing was recorded."""
    bin_folder = Path(sys.executable).parent
    launcher = [str(bin_folder / TORCHRUN[0]), *TORCHRUN[1:]] if "torchrun" in script.read_text() else [sys.executable]
    run = folder / "run"
    record = [str(bin_folder / "traceq"), "record", "--steps", str(steps), "--out", str(run), "--"]
    with (folder / "log.txt").open("w") as log, suppress(subprocess.TimeoutExpired):
        subprocess.run(
            [*record, *launcher, str(script)], cwd=folder, stdout=log, stderr=log, timeout=SECONDS, check=False
        )
    try:
        return sheet(read(str(run)))
    except TraceqError:
        return None


def verdict(leads: Sequence[Claim], expected: str, name: str) -> str:
    """Return where the expected cause stands: `first`, `in the first three`, `later`, `silent`."""
    texts = [f"{lead.code} {lead_of(lead)} {evidence_of(lead)}".replace(name, "script") for lead in leads]
    places = [place for place, text in enumerate(texts) if re.search(expected, text)]
    if not places:
        return "silent"
    return "first" if places[0] == 0 else "in the first three" if places[0] < MOST_LEADS else "later"


def main() -> None:
    """Record, judge, and print a row for each recording."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="")
    parser.add_argument("--times", type=int, default=1)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    expected = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
    evidence: dict[str, list[str]] = json.loads(EVIDENCE.read_text()) if EVIDENCE.exists() else {}
    table = Table("script", "cause", "first lead", "all codes", "took", box=None)
    for script in sorted(options.folder.resolve().glob(f"{options.only or ''}*.py")):
        for _ in range(options.times):
            began = time.monotonic()
            with tempfile.TemporaryDirectory(prefix="traceq-") as scratch:
                answer = recorded(script, options.steps, Path(scratch))
            if answer is None:
                table.add_row(script.stem, "not recorded")
                continue
            where = verdict(answer.leads, expected.get(script.stem, "$^"), script.stem)
            codes = {claim.code for claim in answer.findings}
            first = lead_of(answer.leads[0]) if answer.leads else ""
            took = f"{time.monotonic() - began:.0f} s"
            table.add_row(script.stem, where, first, ", ".join(sorted(codes)), took)
            evidence[script.stem] = sorted({*evidence.get(script.stem, ()), *codes})
    Console(width=None if sys.stdout.isatty() else 200).print(table)
    if options.write:
        EVIDENCE.write_text(json.dumps(evidence, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
