"""Identity of this traceq: caches and clusters combine only results of the same version."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import traceq

__all__ = ["sources"]


@cache
def sources() -> str:
    """Return the version with a digest of the sources: `1.0.0 (5d9e6be41c2a)`."""
    from hashlib import sha256  # OpenSSL takes 2 ms to load

    digest, root = sha256(), Path(traceq.__file__).parent
    for file in sorted(root.rglob("*.py")):
        digest.update(file.read_bytes())
    return f"{traceq.__version__} ({digest.hexdigest()[:12]})"
