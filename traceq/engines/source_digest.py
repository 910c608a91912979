"""Which traceq it is: what one wrote or worked out, only the same one may add to."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

import traceq

__all__ = ["sources"]


@cache
def sources() -> str:
    """The version, and a digest of the sources: `0.1.0 (5d9e6be41c2a)`."""
    digest, root = hashlib.sha256(), Path(traceq.__file__).parent
    for file in sorted(root.rglob("*.py")):
        digest.update(file.read_bytes())
    return f"{traceq.__version__} ({digest.hexdigest()[:12]})"
