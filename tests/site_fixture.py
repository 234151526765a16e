"""The site of the real notebooks, built once for a whole run of pytest, however many workers share it."""

import os
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path


def build_once(tmp_path_factory) -> Path:
    """The folder of the site; whoever asks first builds it, the others wait.

    A process of its own does it, as on the command line: what pytest sets up for itself stays out of it.
    """
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    site = shared / "site"
    with _alone(shared / "site.lock"):
        if not site.exists():
            command = [sys.executable, "-m", "ttt_teach.site", "build", str(site)]
            subprocess.run(command, check=True, timeout=580)
    return site


@contextmanager
def _alone(lock: Path):
    """One process at a time; making a folder is atomic everywhere."""
    while True:
        try:
            lock.mkdir()
            break
        except FileExistsError:
            time.sleep(0.2)
    try:
        yield
    finally:
        lock.rmdir()
