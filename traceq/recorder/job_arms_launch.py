"""A job whose arms differ in what is read once at the start: each runs as a job of its own, several times, in turns.

The arms are given, or those of a search for the largest batch.
"""

from __future__ import annotations

import shlex
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import takewhile
from pathlib import Path
from zlib import crc32

from traceq.errors import UsageFault
from traceq.locations import open_binary, without_secrets
from traceq.model import Arm
from traceq.recorder.failures.hang_watch import HangWatch
from traceq.recorder.failures.rank_errors import LaunchFailure, RankFailure, find_cause, out_of_memory_line, read_error
from traceq.recorder.failures.run_status import mark_ended, read_early_end
from traceq.recorder.isolated_arms import NextArms, record_isolated
from traceq.recorder.job_launch import INTERRUPTED, OUTPUT_OPTION, REMOVED, SCRIPT_ENDINGS, JobOptions, JobResult
from traceq.recorder.jobs.injection import MODERATE, Injection, JobRequest, Note, run_injected
from traceq.recorder.spec.parameters import check_arm, did_you_mean, split_assignment
from traceq.recorder.spec.plan import Plan, PlannedArm
from traceq.recorder.spec.prepare import MAX_REPLICATES, check_range, create_run_folder, utc_now
from traceq.recorder.spec.recipe import Outcome, next_batch
from traceq.runs.run_folder import RunFolder

_ARM, _OUT, _VARIABLE = "{arm}", "{out}", "env:"
_ENDED = "traceq: this process of the job is ended, as nothing is recorded"
_BATCH = "{}"
_FIRST_BATCH, _LARGEST_BATCH = 8, 65_536
_STEPS_OF_BATCH = 32


@dataclass(frozen=True, slots=True)
class _JobArms:
    """The command, and the words of an arm that complete it; `elsewhere`: the run of another node, if it is there."""

    options: JobOptions
    words_of: Callable[[Arm], list[str]]
    on_message: Callable[[str], None]
    elsewhere: set[str] = field(default_factory=set)

    def run(self, plan: Plan) -> LaunchFailure | None:
        """Run one process of the plan's only arm; return why it failed."""
        (planned,) = plan.arms
        injection = Injection.of_run(plan.folder.path)
        shutil.rmtree(plan.folder.faults, ignore_errors=True)
        end_before = read_early_end(plan.folder)
        with (
            tempfile.TemporaryDirectory(prefix="traceq-out-") as output,
            tempfile.TemporaryDirectory(prefix="traceq-") as watched,
        ):
            injection.write(_request(plan, planned.arm, watched, self.options.grace_s))
            words, variables = self._command(planned.arm, output)
            watch = HangWatch(Path(watched), plan.folder, plan.hang_s)
            try:
                exit_code = run_injected(
                    words,
                    injection,
                    self.on_message,
                    watch.look,
                    variables,
                    [output, watched],
                    grace_s=self.options.grace_s,
                    if_unloaded=_ENDED,
                )
                unloaded = "" if injection.is_attached else injection.load_error
                recorded = injection.noted(Note.ELSEWHERE)
                reason = injection.noted(Note.REASON) or unloaded
            finally:
                shutil.rmtree(injection.folder, ignore_errors=True)
                (plan.folder.path / ".claim").unlink(missing_ok=True)
        if exit_code in INTERRUPTED and not unloaded:
            raise INTERRUPTED[exit_code]
        if recorded:
            self.elsewhere.add(recorded)
            plan = replace(plan, out=recorded)
        if not plan.folder.manifest_path.is_file():
            return LaunchFailure(REMOVED, REMOVED)
        if (end := read_early_end(plan.folder)) != end_before:  # on a full disk there is room for the manifest alone
            reason = reason or end[1]
        return None if exit_code == 0 and not reason and _has_steps(plan) else _failure(plan, exit_code, reason)

    def _command(self, arm: Arm, output: str) -> tuple[list[str], dict[str, str]]:
        """Return the command of an arm, and the variables that it sets by `env:NAME=VALUE`."""
        words: list[str] = []
        for word in self.options.command:
            words += self.words_of(arm) if word == _ARM else [word.replace(_OUT, output)]
        settings = [word.removeprefix(_VARIABLE).partition("=") for word in words if word.startswith(_VARIABLE)]
        return [word for word in words if not word.startswith(_VARIABLE)], {key: value for key, _, value in settings}


def launch_job_arms(
    options: JobOptions, arms: Sequence[str], replicates: int, on_message: Callable[[str], None]
) -> JobResult:
    """Run the command once per arm and replicate, in shuffled rounds, and return how that ended.

    `arms`: `NAME=WORDS`, which take the place of `{arm}` in the command. Raises UsageFault for a command without that
    word, and for fewer than two arms.
    """
    words = _parse(arms)
    check_files_of_arms(options.command, words)
    first = next(iter(words))
    planned = [
        Arm(name, without_secrets(shlex.join(each)) or "no words", baseline=name == first)
        for name, each in words.items()
    ]
    plan = _prepare(options, "--arm", planned, replicates)
    on_message(f"traceq: recording {len(words)} arms, {replicates} processes of each, into {plan.out}")
    return _record(plan, None, _JobArms(options, lambda arm: words[arm.name], on_message))


def launch_job_batches(
    options: JobOptions, pattern: str, replicates: int, on_message: Callable[[str], None]
) -> JobResult:
    """Run the command with larger and larger batches, then between, until the largest that fits is known to an eighth.

    `pattern`: words with `{}` for the batch, which take the place of `{arm}` in the command. Raises UsageFault where
    either is missing.
    """
    if _BATCH not in pattern:
        raise UsageFault(
            f"--batch-arg {pattern}: expected {_BATCH} where the batch stands, such as '--batch-size {{}}'"
        )

    def words_of(arm: Arm) -> list[str]:
        return shlex.split(pattern.replace(_BATCH, str(arm.varied["batch_size"])))

    def arm_of(batch: int) -> Arm:
        return Arm(f"batch={batch}", pattern.replace(_BATCH, str(batch)), varied={"batch_size": batch})

    def next_arms(outcomes: Sequence[Outcome]) -> list[PlannedArm]:
        fits = {int(outcome.arm.varied["batch_size"]): not outcome.arm.status for outcome in outcomes}
        batch = next_batch(fits, _FIRST_BATCH, _LARGEST_BATCH)
        return [PlannedArm(arm_of(batch))] if batch else []

    options = replace(options, steps=options.steps or _STEPS_OF_BATCH)
    plan = _prepare(options, "--batch-arg", [replace(arm_of(_FIRST_BATCH), baseline=True)], replicates)
    on_message(f"traceq: trying batches, {plan.steps} steps of each, into {plan.out}")
    return _record(plan, next_arms, _JobArms(options, words_of, on_message))


def _prepare(options: JobOptions, option: str, arms: Sequence[Arm], replicates: int) -> Plan:
    """Create the run's folder and return its plan; UsageFault for options that no job could have."""
    if _ARM not in options.command:
        raise UsageFault(
            f"{option}: expected the word {_ARM} in the command, where the words of an arm take their place"
        )
    options.check()
    check_range("--replicates", replicates, 1, MAX_REPLICATES)
    out = create_run_folder(options.out, options.script, overwrite=options.overwrite).absolute()
    words = [*options.command, *(arm.meaning for arm in arms)]
    seed = crc32("\0".join(words).encode()) >> 1  # launchers on other nodes run the arms in the same order
    plan = Plan(
        run_id=f"{out.name}-{seed:08x}",
        out=str(out),
        device="",  # that of the job, as is the number of ranks: not known before it runs
        num_ranks=0,
        steps=options.steps or 0,
        trace_steps=options.trace_steps,
        seed=seed,
        arms=tuple(map(PlannedArm, arms)),
        reseeds=False,
        started=utc_now(),
        replicates=replicates,
        hang_s=options.hang_s,
    )
    plan.folder.write_manifest(plan.manifest("", "", facts=(MODERATE,)))
    return plan


def _record(plan: Plan, next_arms: NextArms | None, job: _JobArms) -> JobResult:
    """Record all arms and return how that ended."""
    if not any(_OUT in word for word in job.options.command):
        job.on_message(f"traceq: note: without {_OUT} in the command all processes write to the same places")
    try:
        failure = record_isolated(
            plan,
            next_arms,
            lambda part, *_: job.run(part),
            lambda *_: None,
            lambda text: job.on_message(f"traceq: {text}"),
        )
    except (KeyboardInterrupt, SystemExit):
        mark_ended(plan.folder, "interrupted", "ended by a signal")
        raise
    if job.elsewhere:
        shutil.rmtree(plan.folder.path, ignore_errors=True)
        run = RunFolder(Path(job.elsewhere.pop()))
        return JobResult(0, run, failure.fault if failure else "", is_elsewhere=True)
    if failure:
        mark_ended(plan.folder, "failed", failure.fault)
    return JobResult(0, plan.folder, failure.fault if failure else "")


def _parse(arms: Sequence[str]) -> dict[str, list[str]]:
    """Return the words of each arm by name."""
    words: dict[str, list[str]] = {}
    for text in arms:
        name, joined = split_assignment(text, "--arm") if not text.endswith("=") else (text[:-1], "")
        check_arm(name)
        words[name] = shlex.split(joined)
    if len(words) < 2:
        raise UsageFault(f"--arm: found {', '.join(words)}; expected at least two arms, --arm 'NAME=WORDS'")
    return words


def _request(plan: Plan, arm: Arm, watched: str, grace_s: float) -> JobRequest:
    return JobRequest(
        out=plan.out,
        run_id=plan.run_id,
        seed=plan.seed,
        started=plan.started,
        steps=plan.steps or None,
        trace_steps=plan.trace_steps,
        grace_s=grace_s,
        arm=arm,
        process=plan.process,
        replicates=plan.replicates,
        hang_s=plan.hang_s,
        watch=watched,
    )


def _has_steps(plan: Plan) -> bool:
    """Return True if rank 0 has written steps of this process."""
    with suppress(OSError), open_binary(plan.folder.samples(0)) as lines:
        return any(f'"process":{plan.process}'.encode() in line for line in lines)
    return False


def _failure(plan: Plan, exit_code: int, reason: str) -> LaunchFailure:
    """Return why a process failed, and whether its arm alone did: out of memory."""
    arm = plan.arms[0].arm.name
    ranks = range(plan.folder.read_manifest().num_ranks)
    errors = ((rank, read_error(plan.faults_folder, rank)) for rank in ranks)
    failures = [RankFailure(rank, 1, error.text, at_ns=error.at_ns) for rank, error in errors if error]
    if not failures and out_of_memory_line(reason):  # before its steps were known
        failures = [RankFailure(0, 1, reason)]
    if not failures:
        text = reason or f"the job ended with exit code {exit_code} before enough steps were recorded"
        return LaunchFailure(f"arm {arm}: {text}", f"{plan.out}: arm {arm}: {text}")
    cause = find_cause(failures, {})
    text = f"arm {arm}: rank {cause.rank}: {cause.text}"
    return LaunchFailure(text, f"{plan.out}: {text}", cause.arm_status, arm)


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
    return word.endswith(".py") and not any(each.endswith(SCRIPT_ENDINGS) or each in ("-m", "-c") for each in before)
