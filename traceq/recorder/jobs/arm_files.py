"""Files that the words of arms name: one that is missing is refused before the first arm runs."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import takewhile
from pathlib import Path

from traceq.errors import UsageFault
from traceq.recorder.spec.parameters import did_you_mean

OUTPUT_OPTION = re.compile(r"^-.*(out|save|ckpt|checkpoint|log)", re.IGNORECASE)
"""Options of a job that name what it writes."""
_ARM = "{arm}"
_SCRIPT = ".py"
_HAS_SCRIPT = (_SCRIPT, ".sh")


def check_files_of_arms(command: Sequence[str], words: Mapping[str, Sequence[str]]) -> None:
    """Raise UsageFault for an arm that names a missing file: its script, or what is a file in another arm.

    `words` of each arm take the place of `{arm}` in the command. A file of another arm is in the same place there, and
    has the same ending.
    """
    files = [word for of_arm in words.values() for word in of_arm if Path(word).is_file()]
    for name, of_arm in words.items():
        for word in _named_files(command, of_arm, words.values()):
            if not Path(word).exists():
                folder = Path(word).parent
                beside = map(str, folder.iterdir()) if folder.is_dir() else ()
                raise UsageFault(f"--arm {name}={word}: no such file{did_you_mean(word, [*files, *beside])}")


def _named_files(command: Sequence[str], words: Sequence[str], arms: Collection[Sequence[str]]) -> Iterator[str]:
    """Yield the words of an arm that name files which the job reads."""
    for place, word in enumerate(words):
        is_output = place > 0 and OUTPUT_OPTION.match(words[place - 1])
        if word.startswith("-") or "=" in word or is_output:
            continue
        others = [Path(of_arm[place]) for of_arm in arms if place < len(of_arm)]
        is_file_elsewhere = any(other.suffix == Path(word).suffix != "" and other.is_file() for other in others)
        if is_file_elsewhere or (place == 0 and _is_script(command, word)):
            yield word


def _is_script(command: Sequence[str], word: str) -> bool:
    """Return whether the first word of an arm is the script that the command runs: none comes before it."""
    before = list(takewhile(lambda each: each != _ARM, command))
    return word.endswith(_SCRIPT) and not any(each.endswith(_HAS_SCRIPT) or each in ("-m", "-c") for each in before)
