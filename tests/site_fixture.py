"""The site of the real notebooks, built once for a whole run of pytest, however many workers share it."""

import os
import subprocess
import sys
from pathlib import Path

from filelock import FileLock

# Executed for it: one whose sliders are numbers and one that has words, alone and in twos. Of the others the twins will
# do, since nbval executes all notebooks and draws every frame of each (nbval_figures.py).
EXECUTED = "02-correlated-keys", "16-reading-the-tables"


def build_once(tmp_path_factory) -> Path:
    """The folder of the site; whoever asks first builds it, the others wait.

    A process of its own does it, as on the command line: what pytest sets up for itself stays out of it.
    """
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    site = shared / "site"
    with FileLock(shared / "site.lock"):  # whoever is killed lets go of it
        if not site.exists():
            command = [sys.executable, "-m", "ttt_teach.site", "build", str(site), *EXECUTED]
            subprocess.run(command, check=True, timeout=580)
    return site
