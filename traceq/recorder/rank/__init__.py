"""One rank: its process group, its device and its wrapped model."""
