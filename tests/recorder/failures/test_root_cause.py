"""The rank that failed first is named, however loud its peers are."""

from __future__ import annotations

import signal

import pytest

from traceq.recorder.failures.rank_errors import RankFailure, find_cause

PEER = "RuntimeError: [../gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:4711"
LATE = "RuntimeError: Timed out waiting 90000ms for recv operation to complete"


def test_a_killed_rank_beats_its_peers_broken_connection() -> None:
    cause = find_cause([RankFailure(0, 1, PEER), RankFailure(1, -signal.SIGKILL)], {0: 9, 1: 9})
    assert (cause.rank, cause.text) == (1, "killed by SIGKILL")


def test_a_ranks_exception_beats_those_of_its_peers() -> None:
    cause = find_cause([RankFailure(0, 1, PEER), RankFailure(1, 1, "ValueError: a bug")], {0: 3, 1: 9})
    assert (cause.rank, cause.text) == (1, "ValueError: a bug")


def test_a_rank_the_launcher_ended_is_not_to_blame() -> None:
    cause = find_cause([RankFailure(0, None), RankFailure(1, 3)], {0: 1, 1: 9})
    assert (cause.rank, cause.text) == (1, "exited with code 3")


def test_an_abort_with_an_unrelated_message_is_the_ranks_failure() -> None:
    cause = find_cause([RankFailure(0, -signal.SIGABRT, "ValueError: a bug"), RankFailure(1, 1, PEER)], {0: 9, 1: 9})
    assert (cause.rank, cause.text) == (0, "ValueError: a bug")


def test_an_abort_by_the_watchdog_is_a_peers_failure() -> None:
    log = "[Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7)"
    cause = find_cause([RankFailure(0, -signal.SIGABRT, log_tail=log), RankFailure(1, -signal.SIGSEGV)], {0: 9, 1: 9})
    assert (cause.rank, cause.text) == (1, "killed by SIGSEGV")


def test_an_invalid_nccl_call_is_the_ranks_failure() -> None:
    refused = (
        "torch.distributed.DistBackendError: NCCL error in: NCCLUtils.cpp:94, invalid usage\n"
        "ncclInvalidUsage: This usually reflects invalid usage of NCCL library.\n"
        "Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 1b000"
    )
    assert not RankFailure(0, 1, refused).is_secondary
    assert RankFailure(0, 1, "torch.distributed.DistBackendError: NCCL error: ncclRemoteError").is_secondary


def test_a_hang_is_blamed_on_the_rank_the_others_waited_for() -> None:
    assert find_cause([RankFailure(0, 1, LATE), RankFailure(1, None)], {0: 5, 1: 5}).rank == 1
    waiting = [
        RankFailure(0, 1, LATE, at_ns=2),
        RankFailure(1, None),
        RankFailure(2, None),
        RankFailure(3, 1, LATE, at_ns=1),
    ]
    assert find_cause(waiting, {0: 5, 1: 5, 2: 4, 3: 5}).rank == 2
    assert find_cause([RankFailure(0, 1, LATE, at_ns=1), RankFailure(1, 1, LATE, at_ns=2)], {0: 5, 1: 4}).rank == 1


def test_a_rank_that_ended_without_a_message_did_not_end_because_of_another() -> None:
    reported = RankFailure(0, 1, "ValueError: who knows why", at_ns=1)
    for code, text in ((-signal.SIGTERM, "killed by SIGTERM"), (-40, "killed by signal 40")):
        assert find_cause([reported, RankFailure(1, code)], {0: 1, 1: 9}).text == text
    silent = find_cause([reported, RankFailure(1, 0)], {0: 1, 1: 9})
    assert silent.rank == 1
    assert silent.text.startswith("exited with code 0 ")
    assert find_cause([reported, RankFailure(1, -signal.SIGABRT)], {0: 1, 1: 1}).rank == 0


def test_of_several_ranks_with_an_error_the_earliest_is_named() -> None:
    reported = [RankFailure(0, 1, "ValueError: later", at_ns=9), RankFailure(1, 1, "ValueError: first", at_ns=8)]
    assert find_cause(reported, {0: 1, 1: 9}).rank == 1
    lost = [RankFailure(0, 1, PEER, at_ns=9), RankFailure(1, 1, "BrokenPipeError: [Errno 32] Broken pipe", at_ns=8)]
    assert find_cause(lost, {0: 1, 1: 9}).rank == 1


@pytest.mark.parametrize("message", ["", "   \n"])
def test_an_end_without_a_message_is_described_by_its_exit_code(message: str) -> None:
    assert find_cause([RankFailure(2, 17, message)], {0: 1, 1: 1, 2: 1}).text == "exited with code 17"


@pytest.mark.parametrize(
    ("message", "text"),
    [
        ("Traceback:\n  File x\n    y = a['a']\n        ~^^^^^\nKeyError: 'a'\n", "KeyError: 'a'"),
        (
            "AttributeError: no `np.float`.\nThe aliases were deprecated:\n    https://numpy.org",
            "AttributeError: no `np.float`.",
        ),
        (
            "Raised:\n\n-- Process 1:\nTraceback:\n  File x\n    f()\nCudaError: assert\nCompile with",
            "CudaError: assert",
        ),
        (
            "RuntimeError: Error(s) in loading Net:\n\tMissing key(s): a\n\tb",
            "RuntimeError: Error(s) in loading Net: Missing key(s): a",
        ),
    ],
)
def test_what_was_raised_is_reported_without_its_traceback_and_its_advice(message: str, text: str) -> None:
    assert RankFailure(0, 1, message).text == text
