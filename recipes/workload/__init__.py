"""The training job that the recipes vary: model, data, parameters, phases, metrics."""
