"""Fault injection by PYTHONPATH: ends the rank of TRACEQ_TEST_FAULT after some seconds, or once a file exists.

TRACEQ_TEST_HOST is the host name that ranks see, TRACEQ_TEST_PATIENCE their timeout for peers, in seconds.
"""

from __future__ import annotations

import faulthandler
import glob
import importlib.util
import json
import os
import signal
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import NoReturn


def _arm(how: str, seconds: float, fired: str, after: str) -> None:
    def in_main_thread(*_: object) -> NoReturn:
        if how == "exit":
            sys.exit(0)
        if how == "hang":
            time.sleep(1e6)
        raise ValueError("an injected fault")

    def fire() -> None:
        while after and not glob.glob(after, recursive=True):
            time.sleep(0.01)
        time.sleep(seconds)
        Path(fired).touch()
        if how.startswith("SIG"):
            faulthandler.disable()  # its stacks are not needed
            os.kill(os.getpid(), signal.Signals[how])
        if how.startswith("_exit"):
            os._exit(int(how.removeprefix("_exit")))
        os.kill(os.getpid(), signal.SIGUSR2)

    signal.signal(signal.SIGUSR2, in_main_thread)
    threading.Thread(target=fire, daemon=True).start()


if "TRACEQ_TEST_FAULT" in os.environ:
    fault = json.loads(os.environ["TRACEQ_TEST_FAULT"])
    if os.environ.get("RANK") == str(fault["rank"]) and fault["program"] in sys.orig_argv:
        _arm(fault["how"], fault["seconds"], fault["fired"], fault["after"])

if "TRACEQ_TEST_HOST" in os.environ and "RANK" in os.environ:
    import socket

    socket.gethostname = lambda: os.environ["TRACEQ_TEST_HOST"]


class _TimeoutSetter:
    """Import hook that sets the timeout for peers once its module has been imported."""

    def find_spec(self, name: str, *_: object) -> object:
        if name != "traceq.recorder.process.world":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        execute = spec.loader.exec_module

        def patched(module: object) -> None:
            execute(module)
            module.TIMEOUT = timedelta(seconds=float(os.environ["TRACEQ_TEST_PATIENCE"]))

        spec.loader.exec_module = patched
        return spec


if "TRACEQ_TEST_PATIENCE" in os.environ:
    sys.meta_path.insert(0, _TimeoutSetter())
