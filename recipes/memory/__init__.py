"""Memory of a training step: limits, model state, saved activations, host memory."""
