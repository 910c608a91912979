"""A run on disk, and any path as a Run."""
