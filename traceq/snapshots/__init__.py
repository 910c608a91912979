"""Snapshots of torch's allocator: who is alive at the peak, at an out-of-memory error and at the end."""
