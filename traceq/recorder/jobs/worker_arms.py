"""The command that compares numbers of loader workers, which no toggle can: workers start with an epoch's iterator."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence

from traceq.locations import without_secrets

_OPTION = re.compile(r"^(?>[\w.-]*workers?)[\w-]*$")
_OTHER_OPTION = re.compile(r"^(-j|-w|--?[\w-]*(cpus?|threads?|procs?|jobs))$")
_IN_SCRIPT = re.compile(r"""["'](--[\w-]*workers?(?<!persistent[_-]workers))["']""")
_MOST_TRIED = 2


def worker_arms_text(command: Sequence[str], num_workers: int, script: str) -> str:
    """Return why no toggle changes `num_workers`, and the command with an arm of processes for it and for others.

    The option is the one in the command with `workers` in its name, else one such as `-j` or `--n_cpu` with just that
    number, else one that the text of the script names; "" if there is none.
    """
    option, rest = _without_option(command, num_workers)
    if not option and (named := _IN_SCRIPT.search(script)):
        option = named[1]
    if not option:
        return ""
    tried = [num_workers, *(num for num in range(_MOST_TRIED + 1) if num != num_workers and num <= _num_cores())]
    words_of_option = option if option.endswith("=") else f"{option} "
    arms = [word for num in tried for word in ("--arm", f"w{num}={words_of_option}{num}")]
    words = without_secrets(shlex.join(["traceq", "record", *arms, "--replicates", "4", "--", *rest]))
    why = "workers start with an epoch and keep what they were started with, so no toggle reaches them"
    return f"num_workers={num_workers}: {why}; to compare, in processes: {words}"


def _without_option(command: Sequence[str], num_workers: int) -> tuple[str, list[str]]:
    """Return the option for the number of workers, "" without one, and the command with `{arm}` in its place.

    A setting without dashes, as of Hydra (`data.num_workers=2`), ends with `=`.
    """
    for option in (_OPTION, _OTHER_OPTION):
        for index, word in enumerate(command):
            name, joined, value = word.partition("=")
            number = value if joined else "".join(command[index + 1 : index + 2])
            is_setting = bool(joined) and not name.startswith("-")
            if not option.match(name) or "persistent" in name or not number.isdecimal():
                continue
            if option is _OTHER_OPTION and int(number) != num_workers:
                continue
            if is_setting or name.startswith("-"):
                rest = [*command[:index], "{arm}", *command[index + (1 if joined else 2) :]]
                return f"{name}=" if is_setting else name, rest
    return "", [*command, "{arm}"]


def _num_cores() -> int:
    return os.cpu_count() or 1
