"""Run an experiment on every rank. With recipes/ the only place that imports torch."""
