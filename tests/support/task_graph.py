"""Tasks that wait for each other and meet, as a graph of a job."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from traceq.causes.job_graph import JobGraph, job_graph
from traceq.frozen import frozen


@frozen(eq=False)
class TaskGraph:
    """T tasks, each of which begins once some others have ended; `after` int64[W]: the tasks that wait, per wait."""

    graph: JobGraph
    num: int
    after: NDArray[np.int64]

    def play(
        self, duration: NDArray[np.int64], delay: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return when tasks (start, end): int64[T].

        `duration` int64[T] of each, in a meeting from the moment at which all have come; `delay` int64[T] between the
        end of what it waits for (0 without) and its start.
        """
        ends = np.zeros(len(self.graph.source) - self.num - len(self.after), np.int64)
        time = self.graph.times(np.r_[duration, delay[self.after], ends])
        return time[1 : 2 * self.num : 2], time[2 : 2 * self.num + 1 : 2]


def task_graph(num: int, before: NDArray[np.int64], after: NDArray[np.int64], meeting: NDArray[np.int64]) -> TaskGraph:
    """Return the graph of `num` tasks; `after` waits for the end of `before` int64[W].

    `meeting` int64[T]: number of the meeting that a task is a part of, -1 for none.
    """
    tasks = np.arange(num)
    free = np.setdiff1d(tasks, after)
    waits = np.r_[after, free]
    source = np.r_[1 + 2 * tasks, 2 + 2 * before, np.zeros_like(free)]
    target = np.r_[2 + 2 * tasks, 1 + 2 * waits]
    runs = np.flatnonzero(meeting >= 0)
    return TaskGraph(job_graph(1 + 2 * num, source, target, runs, meeting[runs]), num, waits)
