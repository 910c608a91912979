"""Steps, phases and blocking calls, and the partition of every nanosecond of a step."""
