"""One rank of a recording: its state, its environment facts and the wrapper of its model."""
