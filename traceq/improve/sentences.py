"""Every sentence of `traceq improve`."""

from __future__ import annotations

LINES = {
    "survey": "traceq: 1 of 3: the job as it is",
    "trial": "traceq: 2 of 3: remedies in turns with it ({num}), for at most {minutes:.1f} min",
    "fresh_start": "traceq: 3 of 3: what is promising, in a fresh start, for at most {minutes:.1f} min",
    "no_time": "traceq: note: starting the job takes {start_s:.0f} s, so this takes longer than {minutes:g} min",
    "one_node": "improve: the ranks of this command are those of another node's; start it for one node",
    "title": "Remedies, by steps in turns in one process; a step as it is takes {step}",
    "together": "in a fresh start",
    "change": "{remedy}: write {code}",
    "change_at": "{remedy}: {script}:{line}: write {code}",
    "cpu": "{remedy}: not decided, but CPU time of the main thread (excludes blocked time) saves {saves}",
    "loss": "{remedy}: loss {loss}",
    "gains": "A fresh start confirms {remedy}: a step saves {saves} ({share}).",
    "may_gain": "By a fresh start {remedy} may gain too little to matter: a step saves {saves} ({share}).",
    "costs": "A fresh start does not confirm {remedy}: a step saves {saves} ({share}).",
    "in_the_noise": "A fresh start does not confirm {remedy}: a step saves {saves} ({share}).",
    "not_decided": "A fresh start decides nothing of {remedy}: a step saves {saves} ({share}); --minutes says more.",
    "nothing_gains": "Nothing that was tried makes this job faster beyond doubt.",
    "nothing_to_try": "No toggle can make this job faster.",
    "lead": "Left to do: {lead} (a step gets {gain} shorter)",
}
"""What is printed; those named as a verdict are of the fresh start."""

VERDICTS = {
    "gains": "gains",
    "may_gain": "gains, perhaps too little",
    "costs": "costs",
    "in_the_noise": "no difference",
    "not_decided": "not decided",
    "not_measured": "not measured",
    "hopeless": "not tried: too little to gain",
    "no_time": "not tried: no time left",
}
"""What came of a remedy."""
