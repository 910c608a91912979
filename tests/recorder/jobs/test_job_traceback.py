"""A Ctrl-C inside a hook of the recorder is shown at the line of the job."""

from __future__ import annotations

import traceback

import pytest

from traceq.library import analyze
from traceq.recorder.failures.rank_errors import without_own_frames


def test_frames_of_traceq_are_left_out_and_the_others_stay_in_order() -> None:
    with pytest.raises(Exception) as raised:  # noqa: PT011 (of whatever kind: its frames count)
        analyze("/no/such/path", "steps")
    names = [frame.name for frame in traceback.extract_tb(raised.value.__traceback__)]
    kept = [frame.name for frame in traceback.extract_tb(without_own_frames(raised.value.__traceback__))]
    assert len(kept) < len(names)
    assert kept[0] == "test_frames_of_traceq_are_left_out_and_the_others_stay_in_order"
    assert kept == [name for name in names if name in kept]
