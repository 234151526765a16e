"""A private JupyterLab and what a reader does in it, for Playwright."""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

PANEL = ".jp-NotebookPanel:not(.lm-mod-hidden)"

SETTINGS = {
    # Cells off the screen are not in the page otherwise, and no locator finds them.
    "@jupyterlab/notebook-extension/tracker": {"windowingMode": "none"},
    "@jupyterlab/apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False},
}


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


@contextlib.contextmanager
def jupyterlab(root):
    """Serve the folder `root` and yield the address. Nothing of the user's Jupyter is read or written."""
    port = free_port()
    address = f"http://127.0.0.1:{port}"
    with tempfile.TemporaryDirectory(prefix="lab-", ignore_cleanup_errors=True) as home:
        log = Path(home) / "log"
        with log.open("w") as out:
            server = subprocess.Popen(
                _command(root, port),
                env=os.environ | _private(Path(home)),
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # a group of its own, so that its kernels end with it
            )
        try:
            _wait_for(server, address + "/api/status", log)
            yield address
        finally:
            _stop(server)


def _command(root, port):
    return [
        *(sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", "--ip=127.0.0.1"),
        *(f"--port={port}", "--ServerApp.port_retries=0", "--IdentityProvider.token="),
        f"--ServerApp.root_dir={root}",
        "--expose-app-in-browser",  # as jupyterapp
    ]


def _private(home):
    """The environment of a Jupyter whose every file is in `home`, and the settings there."""
    for plugin, values in SETTINGS.items():
        path = home / "settings" / f"{plugin}.jupyterlab-settings"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(values))
    return {
        "JUPYTER_CONFIG_DIR": str(home / "config"),
        "JUPYTER_DATA_DIR": str(home / "data"),
        "JUPYTER_RUNTIME_DIR": str(home / "run"),
        "IPYTHONDIR": str(home / "ipython"),
        "JUPYTERLAB_SETTINGS_DIR": str(home / "settings"),
        "JUPYTERLAB_WORKSPACES_DIR": str(home / "workspaces"),
    }


def _wait_for(server, address, log, seconds=90):
    end = time.monotonic() + seconds
    while time.monotonic() < end and server.poll() is None:
        with contextlib.suppress(OSError):
            urllib.request.urlopen(address, timeout=1).close()
            return
        time.sleep(0.1)
    raise RuntimeError(f"JupyterLab does not answer:\n{log.read_text()[-3000:]}")


def _stop(server):
    with contextlib.suppress(ProcessLookupError):
        os.killpg(server.pid, signal.SIGTERM)
    try:
        server.wait(10)
    except subprocess.TimeoutExpired:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()


def open_notebook(page, address, path):
    """Open a notebook and wait for its kernel."""
    page.goto(f"{address}/lab/tree/{path}?reset")  # reset: the tab of the test before is not opened again
    panel = page.locator(PANEL)
    panel.wait_for(timeout=60_000)
    wait_until_idle(page)
    return panel


def wait_until_idle(page):
    # The status bar: the notebook's own sign says idle before there is a kernel, and Run All is lost then.
    page.locator("#jp-main-statusbar").get_by_text(re.compile(r"\| Idle")).wait_for(timeout=60_000)


def run_all(page):
    """Run every cell, wait for the last and fail on an error in any."""
    # The menu's own command, which tells when all is done: prompts do not, those of hidden cells are blank.
    page.evaluate("jupyterapp.commands.execute('notebook:run-all-cells')")
    errors = page.locator(f'{PANEL} [data-mime-type="application/vnd.jupyter.error"]')
    assert errors.count() == 0, errors.first.inner_text()
