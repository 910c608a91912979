"""The rank that failed first is named, however loud its peers are."""

from __future__ import annotations

import signal

import pytest

from traceq.recorder.process.root_cause import Failure, find_cause

PEER = "RuntimeError: [../gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:4711"
LATE = "RuntimeError: Timed out waiting 90000ms for recv operation to complete"


def test_a_killed_rank_beats_its_peers_broken_connection() -> None:
    cause = find_cause([Failure(0, 1, PEER), Failure(1, -signal.SIGKILL)], {0: 9, 1: 9})
    assert (cause.rank, cause.text) == (1, "killed by SIGKILL")


def test_an_exception_of_a_ranks_own_beats_its_peers() -> None:
    cause = find_cause([Failure(0, 1, PEER), Failure(1, 1, "ValueError: mine")], {0: 3, 1: 9})
    assert (cause.rank, cause.text) == (1, "ValueError: mine")


def test_a_rank_the_launcher_ended_is_not_to_blame() -> None:
    cause = find_cause([Failure(0, None), Failure(1, 3)], {0: 1, 1: 9})
    assert (cause.rank, cause.text) == (1, "left with exit code 3")


def test_an_abort_with_a_message_of_its_own_is_an_own_failure() -> None:
    cause = find_cause([Failure(0, -signal.SIGABRT, "ValueError: mine"), Failure(1, 1, PEER)], {0: 9, 1: 9})
    assert (cause.rank, cause.text) == (0, "ValueError: mine")


def test_an_abort_by_the_watchdog_is_a_peers_failure() -> None:
    log = "[Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7)"
    cause = find_cause([Failure(0, -signal.SIGABRT, log_tail=log), Failure(1, -signal.SIGSEGV)], {0: 9, 1: 9})
    assert (cause.rank, cause.text) == (1, "killed by SIGSEGV")


def test_what_nccl_refuses_a_rank_is_its_own_failure() -> None:
    refused = (
        "torch.distributed.DistBackendError: NCCL error in: NCCLUtils.cpp:94, invalid usage\n"
        "ncclInvalidUsage: This usually reflects invalid usage of NCCL library.\n"
        "Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 1b000"
    )
    assert not Failure(0, 1, refused).is_secondary
    assert Failure(0, 1, "torch.distributed.DistBackendError: NCCL error: ncclRemoteError").is_secondary


def test_a_hang_is_blamed_on_the_rank_the_others_waited_for() -> None:
    assert find_cause([Failure(0, 1, LATE), Failure(1, None)], {0: 5, 1: 5}).rank == 1
    waiting = [Failure(0, 1, LATE, at_ns=2), Failure(1, None), Failure(2, None), Failure(3, 1, LATE, at_ns=1)]
    assert find_cause(waiting, {0: 5, 1: 5, 2: 4, 3: 5}).rank == 2
    assert find_cause([Failure(0, 1, LATE, at_ns=1), Failure(1, 1, LATE, at_ns=2)], {0: 5, 1: 4}).rank == 1


def test_a_rank_that_ended_without_a_word_did_not_end_for_another() -> None:
    told = Failure(0, 1, "ValueError: who knows why", at_ns=1)
    for code, text in ((-signal.SIGTERM, "killed by SIGTERM"), (-40, "killed by signal 40")):
        assert find_cause([told, Failure(1, code)], {0: 1, 1: 9}).text == text
    left = find_cause([told, Failure(1, 0)], {0: 1, 1: 9})
    assert (left.rank, left.text) == (1, "left with exit code 0, before the recording was over")
    assert find_cause([told, Failure(1, -signal.SIGABRT)], {0: 1, 1: 1}).rank == 0


def test_of_several_that_tell_a_fault_the_first_is_named() -> None:
    told = [Failure(0, 1, "ValueError: later", at_ns=9), Failure(1, 1, "ValueError: first", at_ns=8)]
    assert find_cause(told, {0: 1, 1: 9}).rank == 1
    lost = [Failure(0, 1, PEER, at_ns=9), Failure(1, 1, "BrokenPipeError: [Errno 32] Broken pipe", at_ns=8)]
    assert find_cause(lost, {0: 1, 1: 9}).rank == 1


@pytest.mark.parametrize("message", ["", "   \n"])
def test_a_silent_end_is_told_by_its_exit_code(message: str) -> None:
    assert find_cause([Failure(2, 17, message)], {0: 1, 1: 1, 2: 1}).text == "left with exit code 17"


def test_of_a_traceback_its_last_line_is_told() -> None:
    assert Failure(0, 1, "Traceback:\n  File x\nKeyError: 'a'\n").text == "KeyError: 'a'"
