"""On a rank's PYTHONPATH: ends the rank named in TRACEQ_TEST_FAULT in some way, so many seconds after its start, or
after a file is there. TRACEQ_TEST_HOST is what ranks take for their host.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import NoReturn


def _arm(how: str, seconds: float, fired: str, after: str) -> None:
    def in_main_thread(*_: object) -> NoReturn:
        if how == "exit":
            sys.exit(0)
        if how == "hang":
            time.sleep(1e6)
        raise ValueError("a fault of my own")

    def fire() -> None:
        while after and not Path(after).exists():
            time.sleep(0.01)
        time.sleep(seconds)
        Path(fired).touch()
        if how.startswith("SIG"):
            faulthandler.disable()  # no need for its stacks on the way
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
