"""Versions of all that `make demo`, `make test` and `make wheels` install: constraints.txt.

    python packaging/constraints.py                         print those that bind this Python
    python packaging/constraints.py --renew [NAME==VERSION ...]   find the newest, and write them; `make constraints`

What the Python below .venv has, such as a torch of its own, is used as it is: no constraint of that name binds.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from collections.abc import Iterable
from importlib.metadata import distributions
from pathlib import Path

ROOT = Path(__file__).parents[1]
CONSTRAINTS = ROOT / "constraints.txt"
ALONE = ("apache-otava",)
"""Packages that the Makefile installs without what they ask for."""
HEAD = """\
# What `make demo`, `make test` and `make wheels` install, on Linux; `make constraints` renews it. The suite compares
# what this torch records: another one is chosen by hand.
"""


def main() -> None:
    """Print constraints, or renew them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--renew", nargs="*", metavar="NAME==VERSION", help="of these, and torch, the version is kept")
    options = parser.parse_args()
    if options.renew is None:
        names = (each.metadata["Name"] for each in distributions() if _lies_below(str(each.locate_file(""))))
        sys.stdout.write("".join(f"{line}\n" for line in binding(CONSTRAINTS.read_text().splitlines(), names)))
        return
    if sys.version_info[:2] != (3, 11):
        sys.exit("constraints have to fit the oldest Python that pyproject.toml allows: run this with Python 3.11")
    torch = [line for line in CONSTRAINTS.read_text().splitlines() if line.startswith("torch==")]
    kept = [*options.renew, *([] if any(each.startswith("torch==") for each in options.renew) else torch)]
    CONSTRAINTS.write_text(HEAD + "".join(f"{line}\n" for line in resolved(kept)))


def binding(lines: Iterable[str], present: Iterable[str]) -> list[str]:
    """Return the constraints of packages that are not present."""
    names = {_normalized(name) for name in present}
    return [line for line in lines if line and line[0] != "#" and line.partition("==")[0] not in names]


def resolved(kept: Iterable[str]) -> list[str]:
    """Return `name==version` of everything that pip would install into an empty environment, sorted."""
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--quiet", "--report", "-"]
    found = {}
    for words in ([".[record,dev,hta]", *kept], ["--no-deps", *ALONE]):
        done = subprocess.run([*command, *words], cwd=ROOT, check=True, stdout=subprocess.PIPE)
        found |= {each["metadata"]["name"]: each["metadata"]["version"] for each in json.loads(done.stdout)["install"]}
    found.pop("traceq-torch")
    return sorted(f"{_normalized(name)}=={version.partition('+')[0]}" for name, version in found.items())


def _lies_below(folder: str) -> bool:
    """Return whether packages in a folder are of the Python below .venv, and not of .venv."""
    return sys.prefix != sys.base_prefix and not Path(folder).resolve().is_relative_to(Path(sys.prefix).resolve())


def _normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


if __name__ == "__main__":
    main()
