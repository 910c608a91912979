"""Why a device waits: syncs, idle time, the dependency graph, replay and critical path."""
