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
from contextlib import suppress
from pathlib import Path

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).parents[1]
EVIDENCE = ROOT / "tests" / "claims" / "recorded_jobs.json"
SECONDS = 300
TORCHRUN = ("torchrun", "--nproc-per-node", "2")


def leads_of(script: Path, steps: int, folder: Path) -> list[dict[str, str]]:
    """Record a script and return its findings in the order of the first screen; none where nothing was recorded."""
    bin_folder = Path(sys.executable).parent
    launcher = [str(bin_folder / TORCHRUN[0]), *TORCHRUN[1:]] if "torchrun" in script.read_text() else [sys.executable]
    run = folder / "run"
    record = [str(bin_folder / "traceq"), "record", "--steps", str(steps), "--out", str(run), "--"]
    with (folder / "log.txt").open("w") as log, suppress(subprocess.TimeoutExpired):
        subprocess.run(
            [*record, *launcher, str(script)], cwd=folder, stdout=log, stderr=log, timeout=SECONDS, check=False
        )
    shown = subprocess.run(
        [str(bin_folder / "traceq"), "show", str(run), "--json"], capture_output=True, text=True, check=False
    )
    findings: list[dict[str, str]] = json.loads(shown.stdout)["findings"] if shown.returncode == 0 else []
    return findings


def verdict(leads: list[dict[str, str]], expected: str) -> str:
    """Return where the expected cause stands: `first`, `in the first three`, `later`, `silent`, `not recorded`."""
    if not leads:
        return "not recorded"
    places = [
        place
        for place, lead in enumerate(leads)
        if re.search(expected, f"{lead['code']} {lead['lead']} {lead['evidence']}")
    ]
    if not places:
        return "silent"
    return "first" if places[0] == 0 else "in the first three" if places[0] < 3 else "later"


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
    for script in sorted(options.folder.glob(f"{options.only or ''}*.py")):
        for _ in range(options.times):
            began = time.monotonic()
            with tempfile.TemporaryDirectory(prefix="traceq-") as scratch:
                leads = leads_of(script, options.steps, Path(scratch))
            codes = sorted({lead["code"] for lead in leads})
            where = verdict(leads, expected.get(script.stem, "$^"))
            first = leads[0]["lead"] if leads else ""
            table.add_row(script.stem, where, first, ", ".join(codes), f"{time.monotonic() - began:.0f} s")
            if leads:
                evidence[script.stem] = sorted({*evidence.get(script.stem, ()), *codes})
    Console(width=None if sys.stdout.isatty() else 200).print(table)
    if options.write:
        EVIDENCE.write_text(json.dumps(evidence, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
