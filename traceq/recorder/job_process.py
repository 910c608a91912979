"""A process of a job that is recorded unedited: dormant until it trains, then a rank of the recording.

Nothing here raises into the job. A fault ends the recording, restores what was changed, and is one line on stderr.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from threading import current_thread, get_ident, main_thread
from types import TracebackType
from typing import Any
from weakref import ref

import torch
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from traceq.errors import RecordingFailed, TraceqError
from traceq.recorder.failures.external_launcher import note_abort, note_end, sigterm_noted
from traceq.recorder.failures.rank_errors import (
    TerminateHandler,
    error_text,
    is_peer_error,
    note_arm,
    out_of_memory_line,
    without_own_frames,
    write_error,
)
from traceq.recorder.failures.run_status import LOOP_ENDED, RUN_LONGER, mark_ended
from traceq.recorder.job_rank import JobRank, measure_loader, start_rank
from traceq.recorder.jobs.backwards import GradientWatch, gradient_lines
from traceq.recorder.jobs.injection import DRY_RUN, Injection, JobRequest, Note
from traceq.recorder.jobs.job_facts import JobBatches, JobLoader
from traceq.recorder.jobs.loop_hooks import LoopHooks
from traceq.recorder.jobs.phase_stack import PhaseStack
from traceq.recorder.jobs.root_models import find_roots, inner_with_forward, living, replaceable
from traceq.recorder.jobs.step_pattern import LearningNotes
from traceq.recorder.jobs.step_tracker import StepTracker
from traceq.recorder.process.process_end import ProcessEnd, at_process_exit
from traceq.recorder.process.progress_counters import WatchedRank, append_message
from traceq.recorder.rank.rank_state import LoaderWorkers, loader_settings
from traceq.recorder.rank.wall_account import WallAccount, process_began_ns
from traceq.recorder.rank_recording import fitting_steps
from traceq.recorder.spec.phases import Phases
from traceq.recorder.timing.stopwatch import CAPTURED_STEP, is_capturing
from traceq.recorder.toggles.attribute import check_paths
from traceq.recorder.toggles.settings import compiled_ns, has_compiled
from traceq.recorder.toggles.toggle import Job
from traceq.recorder.tracing.line_samples import StepSamples, WorkerSamples
from traceq.recorder.watched_steps import WatchedSteps, start_watching

_BATCHES_OF_COMPILED_STEPS = 32
_BACKWARDS_WITHOUT_FORWARD = 2
"""Backward passes after the first one: if none followed a forward of a model, the loop calls other methods of it."""
_OF_LAUNCHERS = ("ChildFailedError",)
"""Exceptions that tell nothing but exit codes of the processes that a launcher started."""

_NOT_RECORDED = "the job trains in several processes without a group: one of them is recorded, this one trains on"

ExceptHook = Callable[[type[BaseException], BaseException, TracebackType | None], object]


def attach(folder: str) -> None:
    """Watch this process for a training loop; called once torch has been imported."""
    injection = Injection(Path(folder))
    process = JobProcess(injection.attach(), injection)
    process.hooks.install()
    if process.finds_toggles:
        process.hooks.watch_autocast()
    process.note_early_errors()
    os.register_at_fork(after_in_child=process.forget)


class JobProcess:
    """Observer of the loop of this process.

    `is_learning` is true until its steps are known.
    """

    def __init__(self, request: JobRequest, injection: Injection) -> None:
        self.is_learning = True
        self._tracker = StepTracker()
        self._stack = PhaseStack(self._tracker, self._begin_step)
        self.hooks = LoopHooks(self, self._stack, WorkerSamples(injection.folder))
        self._request = request
        self._injection = injection
        self._process_end = ProcessEnd(request.grace_s)
        self._num_batches = 0
        self._num_backwards = 0
        self._learning = LearningNotes()
        self._is_over = False
        self._other_threads: set[int] = set()  # that train models of their own
        self._have_models_compiled = False  # since they were hooked
        self._may_capture = True
        self._has_captured = False  # a CUDA graph of a backward
        self._watched: WatchedRank | None = None
        self._models: list[torch.nn.Module] = []
        self._account = WallAccount(process_began_ns())
        self._set_up_ns = self._account.clock()
        self._optimizers: list[Optimizer] = []
        self._optimizer_events: dict[int, str] = {}  # by the optimizer's id
        self._batches = JobBatches()
        self._gradients: GradientWatch | None = None
        self._rank: JobRank | None = None
        self._watch: WatchedSteps | None = None
        self._steps: Iterator[str] = iter(())
        self._excepthook: ExceptHook = sys.excepthook
        self._while_recording = ExitStack()

    @property
    def finds_toggles(self) -> bool:
        """Whether the toggles that apply to the job are to be found."""
        return self._request.improves == "survey" or self._request.is_dry

    def forget(self) -> None:
        """Forget a loop of the parent process, in a child: it may be a worker of a data loader."""
        self._is_over = self._is_over or self._stack.thread is not None
        self._stack.thread = None
        self._account.at_ns = self._set_up_ns = self._account.clock()

    def note_early_errors(self) -> None:
        """From here on note an exception before any step is known: memory may run out, and DDP lack gradients.

        Ctrl-C is shown without frames of traceq.
        """
        before = sys.excepthook

        def note(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> object:
            if not self._is_over and isinstance(error, Exception) and kind.__name__ not in _OF_LAUNCHERS:
                self._injection.note(Note.ERROR, error_text(error))
                if out_of_memory_line(error_text(error)):
                    self._injection.note(Note.REASON, error_text(error))
            if self._rank is None and self._gradients is not None:
                for line in gradient_lines([self._gradients.uses()]):
                    append_message("", f"traceq: rank {os.environ.get('RANK', '0')}: {line}")
            if isinstance(error, KeyboardInterrupt):  # of any other kind, frames of traceq may tell of its fault
                error.__traceback__ = traceback = without_own_frames(traceback)
            return before(kind, error, traceback)

        sys.excepthook = note

    def backward_began(self, tensors: Any) -> None:
        """Begin to watch this thread, if no other is being watched; note the loss of a step that is recorded."""
        if self._may_capture and not self._has_captured and is_capturing():
            self._has_captured = True
            at_process_exit(self._note_exit)
        watched, thread = self._stack.thread, get_ident()
        if watched is None:
            if not self._is_over:
                self._watch_loop()
        elif watched != thread:
            self._other_threads.add(thread)
        elif not self.is_learning:
            if self._have_models_compiled:
                self._have_models_compiled = False
                self.hooks.hook_models(find_roots())
            if self._rank is not None and not self._rank.rank.phases.profiling:  # a trace has the job's ops alone
                self._rank.losses.note(tensors)
        else:
            if self._have_models_compiled:
                self._find_models()
            self._num_backwards += 1
            if self._gradients is not None:
                self._gradients.watch()
            if self._num_backwards == 1:  # what the loop reads has a name by now
                paths = {toggle.name: toggle.values for toggle in self._request.toggles}
                check_paths(paths, Job(self._models, self._optimizers))
            if self._num_backwards == _BACKWARDS_WITHOUT_FORWARD and has_compiled() and not self._tracker.has_forward:
                self.hooks.hook_forwards(replaceable(inner_with_forward(self._models)))
            self._learning.say(self._num_backwards)

    def _watch_loop(self) -> None:
        """Watch this thread from its first backward on."""
        self._stack.thread = get_ident()
        self._learning = LearningNotes()
        self.compiled(before_ns := compiled_ns())
        self._account.charge("start_up")
        self._account.before_ns = max(self._account.at_ns - self._set_up_ns - before_ns, 0)
        self._be_watched()
        self._find_models()

    def batch_requested(self) -> None:
        """Watch the main thread if it trains by a compiled step, which shows neither backward nor optimizer."""
        if self._stack.thread is not None or self._is_over or current_thread() is not main_thread():
            return
        self._num_batches += torch.is_grad_enabled()
        if self._num_batches >= _BATCHES_OF_COMPILED_STEPS and has_compiled():
            self._stack.thread = get_ident()
            self._be_watched()
            self._models = find_roots()
            self._tracker.assume_batches(self._num_batches)

    def batch_delivered(self, loader: DataLoader[Any] | None, batch: Any) -> None:
        """Note a batch of a training step that is being learned."""
        if torch.is_grad_enabled():
            self._batches.add(loader, batch)

    def models_compiled(self) -> None:
        """Note that models are to be hooked again, as torch compiles the first of them."""
        self._have_models_compiled = self._stack.thread is not None

    def compiled(self, ns: int) -> None:
        """Note that torch has compiled for so long."""
        self._account.compiled_ns += ns

    def optimizer_made(self) -> None:
        """Note when the job was set up: what it does from here on, before it trains, it may do again."""
        self._set_up_ns = self._account.clock()

    def optimizer_began(self) -> None:
        """Note that nothing can be learned before the optimizer has ended its step."""
        if get_ident() in self._other_threads:
            return
        self._tracker.is_in_optimizer = True

    def optimizer_left(self) -> None:
        """Note that the optimizer's step ended, with no event."""
        self._tracker.is_in_optimizer = False

    def optimizer_stepped(self, optimizer: Optimizer) -> None:
        """Add the event of the optimizer; in backward it may step on another thread than the loop's."""
        if self._stack.thread is None or (self._other_threads and get_ident() in self._other_threads):
            return
        self._tracker.is_in_optimizer = False
        event = self._optimizer_events.get(id(optimizer))
        if event is None:
            event = self._optimizer_events[id(optimizer)] = f"O{len(self._optimizers)}"
            self._optimizers.append(optimizer)
        self._tracker.add(event)

    def _be_watched(self) -> None:
        """Let the launcher see that this process makes progress, if it runs on the same host."""
        if not self._request.hang_s:
            return
        rank = os.environ.get("RANK", "")
        with suppress(Exception):
            self._watched = WatchedRank(self._request.watch, int(rank) if rank.isdecimal() else 0)
            self._stack.counters = self._watched.counters

    def _find_models(self) -> None:
        self._have_models_compiled = False
        self._models = find_roots()
        self.hooks.hook_models(self._models)
        self.hooks.watch_inner(self._models)
        if self._request.is_dry and self._gradients is None:
            self._gradients = GradientWatch(self._models)

    def _settle_models(self) -> None:
        """Keep the models that still exist: of one that the job makes anew in each step, the modules that it calls."""
        called = self.hooks.take_inner()
        references = [ref(model) for model in self._models]
        self._models.clear()
        self._models += living(references)
        if len(self._models) < len(references):
            contained = {id(module) for model in self._models for module in model.modules()}
            self._models += [module for module in called if id(module) not in contained]

    def _begin_step(self) -> None:
        """End the step before, and begin the one whose first event this is."""
        if self._may_capture and is_capturing():
            raise RecordingFailed(CAPTURED_STEP)
        if self._watch is not None:
            self._watch.end_step()
            return
        if self._rank is None:
            self._start()
        else:
            self._rank.losses.end_step(self._tracker.arm)
        if not self._is_over and self._rank is not None and next(self._steps, None) is None:
            self._finish()

    def _start(self) -> None:
        """Become a rank of the recording, once the loop's steps are known."""
        self._account.charge("learning")
        self._settle_models()
        if self._request.of_loader:
            self._measure_loader()
            return
        assert self._tracker.pattern is not None
        job = Job(
            self._models,
            self._optimizers,
            self.hooks.has_entered_autocast or not self.finds_toggles,
            self._tracker.pattern.num_passes,
            self._batches.loader,
        )
        if self._request.is_watched:
            self._start_watching(job)
            return
        uses = self._gradients.uses() if self._gradients is not None else {}
        self._rank = start_rank(
            self._request, job, self._tracker, self._stack.counters, self._loader(), uses, self._account
        )
        self._batches.clear()
        if self._rank is None:
            self._end()
            if self._request.is_dry:
                self._injection.note(Note.REASON, DRY_RUN)
                self._stop(0)
            else:
                append_message("", f"traceq: note: {_NOT_RECORDED}")
            return
        self.is_learning = False
        self._may_capture = self._rank.rank.world.device.type == "cuda"
        self._stack.phases = self._rank.rank.phases
        samples = StepSamples(self._account)
        self._tracker.on_other_work = samples.depart
        self._while_recording.callback(samples.stop)
        self._steps = self._rank.run()
        at_process_exit(self._note_exit)
        rank = self._rank.rank
        if rank.world.size > 1:
            self._while_recording.callback(TerminateHandler(lambda: note_abort(rank.plan, rank.world)).restore)
            self._while_recording.enter_context(sigterm_noted(rank.plan, rank.world))
        self._excepthook, sys.excepthook = sys.excepthook, self._note_error

    def _start_watching(self, job: Job) -> None:
        """Time every step from here on, until the job ends."""
        self._watch = start_watching(self._request, job, self._tracker)
        self._batches.clear()
        if self._watch is None:
            self._end()
            append_message("", f"traceq: note: {_NOT_RECORDED}")
            return
        self.is_learning = False
        self._stack.phases = self._watch.phases
        at_process_exit(self._note_exit)

    def _loader(self) -> JobLoader:
        loader = self._batches.loader
        if loader is None:
            return JobLoader(self._batches.samples_per_batch)
        hooks, pids = self.hooks, partial(self.hooks.worker_pids, ref(loader))  # the job may want to free it
        num_renewed = 0 if getattr(loader, "persistent_workers", False) else loader.num_workers
        workers = LoaderWorkers(pids, hooks.samples.start, hooks.samples.take, num_renewed)
        return JobLoader(self._batches.samples_per_batch, loader_settings(loader), workers)

    def _measure_loader(self) -> None:
        """Measure the loader alone; from here on nothing is watched."""
        job, batches = Job(list(self._models), ()), self._batches
        self._end()
        measure_loader(self._request, job, batches)
        batches.clear()
        self._stop(0)

    def _finish(self) -> None:
        assert self._rank is not None
        rank = self._rank
        self._end()
        rank.finish()
        if self._request.stops:
            rank.wait_for_peers()
        self._stop(0)

    def _end(self) -> None:
        """Restore everything that was changed; from here on the job runs as if it had never been watched."""
        self._is_over, self._stack.thread, self.is_learning = True, None, False
        self._stack.phases = Phases()
        if self._watched is not None:
            self._watched.close()
        self._while_recording.close()
        if self._rank is not None:
            self._rank.close()
        if self._watch is not None:
            self._watch.close()
        self.hooks.remove()
        if self._gradients is not None:
            self._gradients.close()
        self._models.clear()  # the job may want to free them
        self._optimizers.clear()
        self._optimizer_events.clear()
        if sys.excepthook == self._note_error:
            sys.excepthook = self._excepthook

    def _stop(self, code: int) -> None:
        """End the process as Ctrl-C does, if the job ends with its recording."""
        if self._request.stops:
            self._injection.note(Note.STOPPED)
            self._process_end.interrupt(code)

    def fail(self, error: Exception) -> None:
        """End the recording, and the job with it if it would end with the recording."""
        text = str(error) if isinstance(error, TraceqError) else f"{type(error).__name__}: {error}"
        rank = self._rank
        with suppress(Exception):
            self._end()
        with suppress(Exception):
            self._note_failure(error, text)
        self._stop(0 if rank is None else 1)  # at the start all ranks end alike; later some may be waiting

    def _note_failure(self, error: Exception, text: str) -> None:
        if not self._request.stops:  # else the launcher says so in a moment
            append_message("", f"traceq: rank {os.environ.get('RANK', '0')}: recording ended: {text}")
        self._injection.note(Note.REASON, text)
        if (rank := self._rank) is not None:
            rank.leave(text)
            if is_peer_error(text):  # that rank waits for a collective which this one has not issued
                note_end(rank.rank.plan, rank.rank.world, error)
            mark_ended(rank.rank.plan.folder, "failed", text)

    def _note_exit(self, error: BaseException | None) -> None:
        """Note a loop that ended before its recording was complete, by itself or with an exception."""
        with suppress(Exception):  # the folder may be gone
            if self._is_over:
                return
            if self._watch is not None:
                self._end()
            elif self._rank is None:  # no step was known
                self._injection.note(Note.REASON, CAPTURED_STEP)
            elif error is not None:
                self._note_raised(self._rank, error)
            else:
                self._note_loop_end(self._rank)

    def _note_loop_end(self, rank: JobRank) -> None:
        is_complete = rank.rank.plan.folder.read_manifest().status == "complete"  # but for what a whole cycle lacks
        if is_complete and rank.rank.world.size == 1:  # of several ranks each would wait for the others
            self._end()
            rank.finish()
            return
        where = f"rank {rank.rank.world.rank}: " if rank.rank.world.size > 1 else ""
        text = f"{where}{LOOP_ENDED} {rank.rank.progress.text}"
        with suppress(Exception):
            self._end()
        rank.leave(text)
        steps = fitting_steps(rank.rank.plan, rank.rank.progress.num_ended)
        fewer = f", or record fewer steps (--steps {steps})" if steps and not self._request.improves else ""
        remedy = f"; {CAPTURED_STEP}" if self._has_captured else f"{RUN_LONGER}{fewer}"
        mark_ended(rank.rank.plan.folder, "failed", f"{text}{remedy}")

    def _note_error(self, kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> object:
        """Note the job's own exception as the reason why the recording ended, then report it as ever."""
        hook = self._excepthook
        self._note_exit(error)
        return hook(kind, error, traceback)

    def _note_raised(self, rank: JobRank, error: BaseException) -> None:
        rank.leave(error_text(error))
        plan, world = rank.rank.plan, rank.rank.world
        with suppress(Exception):
            if len(plan.arms) > 1 and isinstance(error, Exception):  # memory may run out in one of them alone
                note_arm(error, self._tracker.arm)
            if plan.process >= 0:  # the launcher goes on with the other arms
                write_error(plan.faults_folder, world.rank, error)
            else:
                note_end(plan, world, error)
        with suppress(Exception):
            self._end()
