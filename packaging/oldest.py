"""Print the oldest packages that pyproject.toml allows, one `name==version` per line: constraints of `make oldest`.

    python packaging/oldest.py [EXTRA ...]

of the dependencies and of these extras, in the order of pyproject.toml.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
AT_LEAST = re.compile(r"(?P<name>[\w.-]+)(\[[\w,]+\])?>=(?P<version>[\d.]+)")


def main() -> None:
    """Print them."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    requirements = list(project["dependencies"])
    for extra in sys.argv[1:]:
        requirements += project["optional-dependencies"][extra]
    for requirement in requirements:
        match = AT_LEAST.match(requirement)
        if match is None:
            sys.exit(f"{requirement}: expected NAME>=VERSION")
        sys.stdout.write(f"{match['name']}=={match['version']}\n")


if __name__ == "__main__":
    main()
