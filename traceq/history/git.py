"""What a git repository says of commits; "", or nothing, where there is none."""

from __future__ import annotations

import os
import re
import subprocess

Commit = tuple[str, str]
"""Abbreviated hash and subject."""
_OBJECT = re.compile(r"[0-9a-f]{4,64}")  # what is in a store is no option of git
_SECONDS = 10


def current_branch() -> str:
    """Return the branch of the working directory; where HEAD is detached, as in most CI, what GitHub or GitLab says."""
    of_ci = (os.environ.get(name, "") for name in ("GITHUB_HEAD_REF", "GITHUB_REF_NAME", "CI_COMMIT_REF_NAME"))
    return _git("symbolic-ref", "--quiet", "--short", "HEAD").strip() or next(filter(None, of_ci), "")


def current_commit() -> str:
    """Return the commit of the working directory."""
    return _git("rev-parse", "HEAD").strip()


def commits_between(first: str, last: str) -> tuple[Commit, ...]:
    """Return the commits after the first up to the last, oldest first; none where the repository lacks one of them."""
    first, last = (commit.removesuffix("+dirty") for commit in (first, last))
    if not (_OBJECT.fullmatch(first) and _OBJECT.fullmatch(last)):
        return ()
    lines = _git("log", "--reverse", "--format=%h %s", f"{first}..{last}").splitlines()
    return tuple((line.partition(" ")[0], line.partition(" ")[2]) for line in lines)


def _git(*words: str) -> str:
    """Return what git prints; "" if it fails."""
    try:
        done = subprocess.run(["git", *words], capture_output=True, text=True, timeout=_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired, UnicodeDecodeError):
        return ""
    return done.stdout if done.returncode == 0 else ""
