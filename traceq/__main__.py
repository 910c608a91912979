"""`python -m traceq` is the command `traceq`."""

from traceq.cli import main

main()
