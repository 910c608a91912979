"""What is released installs where there is no compiler, reads natively, and says one version everywhere."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import sysconfig
import tomllib
import venv
from importlib.util import find_spec
from pathlib import Path

import pytest
from paths import FIXTURES, ROOT

import traceq

RUN = FIXTURES / "outlier_ab" / "on"
WHEELS = ROOT / "packaging" / "wheels.py"
linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="builds wheels of Linux")
needs_builders = pytest.mark.skipif(
    any(find_spec(name) is None for name in ("ziglang", "auditwheel", "build")),
    reason="ziglang, auditwheel or build is not installed",
)
NATIVE = "from traceq.kineto.reader_choice import reader; print(reader())"


class Environment:
    """A fresh environment whose PATH has no compiler, and whose packages are this one's, but for traceq."""

    def __init__(self, folder: Path) -> None:
        venv.create(folder, with_pip=False, symlinks=True)
        self.bin = folder / "bin"
        self.home = folder
        (packages,) = folder.glob("lib/python*/site-packages")
        (packages / "of_the_tests.pth").write_text(f"{sysconfig.get_path('purelib')}\n")

    def run(self, *words: str, variables: dict[str, str] | None = None) -> str:
        environment = {"PATH": str(self.bin), "HOME": str(self.home), "LANG": "C.UTF-8", **(variables or {})}
        done = subprocess.run(
            [str(self.bin / "python"), *words],
            cwd=self.home,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def install(self, package: Path, variables: dict[str, str] | None = None) -> None:
        offline = ["--no-index", "--no-deps", "--no-build-isolation", "--ignore-installed", "--no-cache-dir"]
        self.run(
            "-m", "pip", "-q", "--disable-pip-version-check", "install", *offline, str(package), variables=variables
        )

    def check(self, reader: str) -> None:
        """Assert that it runs from its own files, with this reader, and answers as the tree of the tests does."""
        assert str(self.home) in self.run("-c", "import traceq; print(traceq.__file__)")
        assert self.run("-c", NATIVE).strip() == reader
        assert self.run("-m", "traceq", "--version").strip() == f"traceq {traceq.__version__} ({reader} reader)"
        if reader == "native":
            self.run("-c", "import traceq.causes._paths")
        ours = subprocess.run(
            [sys.executable, "-m", "traceq", "show", "--json", str(RUN)],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=True,
        )
        assert json.loads(self.run("-m", "traceq", "show", "--json", str(RUN))) == json.loads(ours.stdout)


def build(out: Path, umask: int = 0o022) -> Path:
    """A folder with the source distribution and the wheel of this machine's kind, built by clang of ziglang."""
    command = [sys.executable, str(WHEELS), "--out", str(out), "--only", "manylinux_2_17_x86_64"]
    subprocess.run(command, check=True, umask=umask)
    return out


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("released"))


@pytest.mark.slow
@linux
@needs_builders
def test_a_wheel_reads_natively_in_a_fresh_environment_without_a_compiler(released: Path, tmp_path: Path) -> None:
    (wheel,) = released.glob("*.whl")
    assert wheel.name == f"traceq_torch-{traceq.__version__}-cp311-abi3-manylinux_2_17_x86_64.whl"
    environment = Environment(tmp_path / "fresh")
    environment.install(wheel)
    environment.check("native")


@pytest.mark.slow
@linux
@needs_builders
@pytest.mark.parametrize("compiler", ["none", "zig"])
def test_the_source_installs_without_gcc_and_reads_natively_where_another_compiler_is(
    compiler: str, released: Path, tmp_path: Path
) -> None:
    (source,) = released.glob("*.tar.gz")
    environment = Environment(tmp_path / "fresh")
    zig = f"{sys.executable} -m ziglang c++"
    given = (
        {}
        if compiler == "none"
        else {"CC": zig, "CXX": zig, "LDSHARED": f"{zig} -shared", "LDCXXSHARED": f"{zig} -shared"}
    )
    environment.install(source, given)
    environment.check("python" if compiler == "none" else "native")


@pytest.mark.slow
@linux
@needs_builders
def test_what_is_built_twice_is_the_same_to_the_byte(released: Path, tmp_path: Path) -> None:
    again = build(tmp_path, umask=0o077)
    first, second = ({path.name: path.read_bytes() for path in out.iterdir()} for out in (released, again))
    assert len(first) == 2
    assert first.keys() == second.keys()
    assert [name for name, content in first.items() if content != second[name]] == []


def test_the_version_stands_in_one_place_and_has_a_dated_entry() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert "version" not in project["project"]
    assert project["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "traceq.__version__"}
    changes = (ROOT / "CHANGELOG.md").read_text()
    assert re.search(rf"^## \[{re.escape(traceq.__version__)}\] - \d{{4}}-\d\d-\d\d$", changes, re.MULTILINE)


def test_the_workflow_tests_the_supported_versions_and_publishes_without_a_password() -> None:
    workflow = (ROOT / ".github" / "workflows" / "ci.yml").read_text()
    supported = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]
    assert supported == ">=3.11"
    assert re.search(r'python: \["3\.11", "3\.12", "3\.13", "3\.14"\]', workflow)
    assert "id-token: write" in workflow
    assert "pypa/gh-action-pypi-publish" in workflow
    assert not re.search(r"password:|secrets\.", workflow)
    targets = set(re.findall(r"make (\w+)", workflow))
    assert targets
    assert targets <= set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def test_the_workflow_pins_each_action_by_its_commit_and_names_the_version() -> None:
    workflow = (ROOT / ".github" / "workflows" / "ci.yml").read_text()
    actions = re.findall(r"uses: (.*)", workflow)
    assert actions
    assert [each for each in actions if not re.fullmatch(r"[\w/-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", each)] == []


def test_reports_of_bugs_are_asked_for_the_version_and_a_trace() -> None:
    form = (ROOT / ".github" / "ISSUE_TEMPLATE" / "bug.yml").read_text()
    assert "traceq --version" in form
    assert re.search(r"id: trace\n", form)
