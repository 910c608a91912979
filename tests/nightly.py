"""Run the long suites, and write what came of each into tests/nightly.md, with the commit.

    python tests/nightly.py [PART ...]

A part is a target of the Makefile; without one all of them run, which takes a night. The rows of others are kept.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
REPORT = ROOT / "tests" / "nightly.md"
PARTS = (
    "slow", "faults", "recipes", "strategies", "causes", "whatif", "oldest", "fuzz", "wheels", "jobs", "recordings",
)  # fmt: skip
HEAD = """# The long suites, as they last ran

`make nightly` runs them all, `make nightly PARTS="slow faults"` some, and renews their rows. A change of what a part
tests is finished once that part has run on it.

| part | result | took | commit | when |
|---|---|---|---|---|
"""


def run(part: str, commit: str) -> str:
    """Run a part, its output on the terminal, and return its row."""
    began = time.monotonic()
    process = subprocess.Popen(["make", part], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.stdout is not None
    last = ""
    for line in process.stdout:
        sys.stdout.write(line)
        if line.strip() and not line.startswith("make:"):
            last = line.strip(" =\n")
    code = process.wait()
    result = f"exit {code}: {last}" if code else last
    minutes = (time.monotonic() - began) / 60
    now = datetime.now(UTC)
    return f"| {part} | {result.replace('|', '/')[:120]} | {minutes:.1f} min | {commit} | {now:%Y-%m-%d %H:%M} |"


def _commit() -> str:
    command = ["git", "describe", "--always", "--dirty", "--exclude", "*"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def main() -> int:
    """Run the parts, writing the report behind each; 1 if one failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    lines = REPORT.read_text(encoding="utf-8").splitlines() if REPORT.exists() else []
    rows = {line.split("|")[1].strip(): line for line in lines if line.startswith("| ") and "---" not in line}
    parts = parser.parse_args().parts or PARTS
    if unknown := set(parts) - set(PARTS):
        parser.error(f"no such part: {', '.join(sorted(unknown))}")
    commit = _commit()  # before the report is written, which is no change of what is run
    for part in parts:
        rows[part] = run(part, commit)
        REPORT.write_text(HEAD + "".join(f"{rows[each]}\n" for each in PARTS if each in rows), encoding="utf-8")
    return int(any("| exit " in rows[part] for part in parts))


if __name__ == "__main__":
    sys.exit(main())
