"""Made-up training jobs whose truth is known: programs with fixed costs, carried out, and written as a profiler.

job = a_job(seed=1, num_ranks=8)
timelines = simulate(job)
run = run_of(job, timelines)
"""

from .generate import Shape, a_job
from .kineto import json_of, run_of, trace_of
from .machine import simulate
from .program import US, Job
from .timeline import Timeline

__all__ = ["US", "Job", "Shape", "Timeline", "a_job", "json_of", "run_of", "simulate", "trace_of"]
