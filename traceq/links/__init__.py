"""What belongs together: launch and device work, sync and awaited work, work and its phase, step, op and line."""
