"""Copied into a folder of a run that PYTHONPATH names: loaded by every Python process of the job when it starts.

It does nothing until torch has been imported, and never breaks the process. A sitecustomize of the user, which this
one hides, is loaded after it. Not a part of the package that anything imports.
"""

import contextlib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys

FOLDER = os.path.dirname(os.path.abspath(__file__))


class _AfterTorch(importlib.abc.MetaPathFinder):
    """Finder that attaches the recorder once torch has been imported."""

    is_searching = False

    def find_spec(self, name, path=None, target=None):  # type: ignore[no-untyped-def]
        if name != "torch" or self.is_searching:
            return None
        self.is_searching = True
        try:
            spec = importlib.util.find_spec("torch")
        finally:
            self.is_searching = False
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def execute_and_attach(module):  # type: ignore[no-untyped-def]
            execute(module)
            if self in sys.meta_path:
                sys.meta_path.remove(self)
            _attach()

        spec.loader.exec_module = execute_and_attach  # type: ignore[method-assign]
        return spec


def _attach() -> None:
    try:
        from traceq.recorder.job_process import attach

        attach(FOLDER)
    except Exception as error:  # noqa: BLE001 (whatever happens, the user's process goes on)
        remedy = "; pip install 'traceq-torch[record]' for the job's Python" if isinstance(error, ImportError) else ""
        text = f"{type(error).__name__}: {error}{remedy}"
        sys.stderr.write(f"traceq: process {os.getpid()} is not recorded: {text}\n")
        with contextlib.suppress(OSError), open(os.path.join(FOLDER, "load_error"), "x", encoding="utf-8") as file:
            file.write(f"{os.getpid()}\n{text}")


def _load_hidden() -> None:
    """Load the sitecustomize of the user's environment, if there is one."""
    others = [path for path in sys.path if os.path.abspath(path or ".") != FOLDER]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


if os.path.isfile(os.path.join(FOLDER, "job.json")):  # not where the package itself is on the path
    sys.meta_path.insert(0, _AfterTorch())
    _load_hidden()
