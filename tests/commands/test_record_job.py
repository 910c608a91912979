"""What `traceq record -- COMMAND` advises at its end."""

from __future__ import annotations

import pytest

from traceq.commands._record_job import _with_replicates


@pytest.mark.parametrize("given", [["--replicates", "1"], ["--replicates=2"]])
def test_the_command_with_enough_replicates_is_the_same_otherwise(given: list[str]) -> None:
    job = ["--", "torchrun", "train.py", "--replicates", "9", "{arm}"]
    words = _with_replicates(["record", "--arm", "a=", *given, "--steps", "32", *job])
    assert words == ["record", "--arm", "a=", "--replicates=4", "--steps", "32", *job]
