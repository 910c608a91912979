"""History of a job: what its runs measured, where that changed, and why."""
