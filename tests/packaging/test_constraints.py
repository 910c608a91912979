"""Everything that the Makefile installs has one version, that of constraints.txt."""

from __future__ import annotations

import re
import runpy
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distribution

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from paths import ROOT

SCRIPT = runpy.run_path(str(ROOT / "packaging" / "constraints.py"))
LINES = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
VERSIONS = dict(line.split("==") for line in LINES)


def required() -> Iterator[Requirement]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for extra in ("record", "dev", "hta", "wheels"):
        yield from map(Requirement, project["optional-dependencies"][extra])
    yield from map(Requirement, project["dependencies"])


def test_each_requirement_has_a_version_that_it_allows() -> None:
    assert [str(each) for each in required() if VERSIONS.get(canonicalize_name(each.name)) not in each.specifier] == []


@pytest.mark.pinned
@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="the constraints are those of the oldest Python")
def test_what_is_required_in_turn_has_a_version_too() -> None:
    """By the metadata of what is installed here."""
    rest, seen = list(required()), set[tuple[str, str]]()
    while rest:
        each = rest.pop()
        name = canonicalize_name(each.name)
        for extra in ("", *each.extras):
            if (name, extra) in seen:
                continue
            seen.add((name, extra))
            try:
                below = map(Requirement, distribution(name).requires or ())
            except PackageNotFoundError:
                continue
            rest += [one for one in below if one.marker is None or one.marker.evaluate({"extra": extra})]
    assert len(seen) > 100
    assert sorted({name for name, _ in seen} - VERSIONS.keys()) == []


def test_a_package_that_is_there_is_used_as_it_is() -> None:
    lines = ["# a comment", "torch==2.13.0", "typing-extensions==4.16.0", "numpy==2.4.6"]
    assert SCRIPT["binding"](lines, ["torch", "typing_extensions"]) == ["numpy==2.4.6"]
    assert SCRIPT["binding"](lines, []) == lines[1:]


def test_the_makefile_installs_nothing_without_constraints() -> None:
    makefile = (ROOT / "Makefile").read_text().replace("\\\n", " ")
    installs = [line for line in makefile.splitlines() if re.search(r"pip\)? install|\bPIP\) install", line)]
    bound = [line for line in installs if "$(PIP) install" in line or "-c $(OLDEST)/constraints.txt" in line]
    assert len(installs) == 7
    assert bound == installs
    assert re.search(r"^PIP := PIP_CONSTRAINT=", makefile, re.MULTILINE)
