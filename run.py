#!/usr/bin/env python3
"""The command line of ttt_teach. Every command first makes .venv, if that is not done yet.

    python3 run.py lab [...]            open JupyterLab on the notebooks (... goes to JupyterLab)
    python3 run.py test [...]           run every test, the notebooks included (... goes to pytest)
    python3 run.py site [FOLDER]        build the static site, in site/ unless told otherwise
    python3 run.py figures [NAME ...]   execute every notebook, or those named, and redraw their figures
    python3 run.py setup                only make .venv

It needs Python 3.12, 3.13 or 3.14 on the machine; an older python3 may start it.
"""

# Kept to the syntax of Python 3.7, so that an old Python can say what is missing.
import glob
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

VERSIONS = ("3.12", "3.13", "3.14")  # the one of the CI first
CHROMIUMS = (
    "chromium",
    "chromium-browser",
    "google-chrome",
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
)

ROOT = Path(__file__).resolve().parent
VENV = ROOT / ".venv"
PYTHON = VENV / ("Scripts" if os.name == "nt" else "bin") / "python"
STAMP = VENV / "ttt_teach.stamp"


def say(words):
    print(f"run.py: {words}", file=sys.stderr, flush=True)


def fail(words):
    sys.exit(f"run.py: {words}")


def is_root():
    return hasattr(os, "geteuid") and os.geteuid() == 0


def version_of(python):
    """'3.12' of a Python that is new enough and can make environments, else ''."""
    # Running it is the only proof: pyenv leaves a python3.12 on the PATH that refuses to run.
    probe = "import ensurepip, sys, venv; print(*sys.version_info[:2], sep='.')"
    try:
        said = subprocess.check_output([str(python), "-I", "-c", probe], stderr=subprocess.DEVNULL, timeout=60)
    except (OSError, subprocess.SubprocessError):
        return ""
    version = said.decode().strip()
    return version if version in VERSIONS else ""


def find_python():
    """The Python that started this file if it will do, else one on the PATH or in pyenv."""
    pyenv = os.environ.get("PYENV_ROOT") or os.path.expanduser("~/.pyenv")
    candidates = [sys.executable]
    for version in VERSIONS:
        candidates += [f"python{version}", *glob.glob(f"{pyenv}/versions/{version}.*/bin/python")]
    return next(filter(version_of, candidates), None) or fail(
        "found no Python 3.12, 3.13 or 3.14 that can make environments (this one is {}.{}): install one with "
        "`sudo apt-get install python3-venv` on Debian 13 or Ubuntu 24.04 and newer, "
        "`brew install python@3.13` on macOS or `pyenv install 3.13` elsewhere, and run this command "
        "again.".format(*sys.version_info)
    )


def place():
    """Where .venv stands and on which Python; an environment cannot be moved or change its Python."""
    return f"{str(VENV)!a} on Python {version_of(PYTHON)}\n"


def set_up():
    """Make .venv and install what is asked for, unless both were done here for these very files."""
    asked = hashlib.sha256((ROOT / "pyproject.toml").read_bytes() + (ROOT / "constraints.txt").read_bytes())
    stamp = STAMP.read_text() if STAMP.exists() else ""
    if stamp == place() + asked.hexdigest():
        return
    if not stamp.startswith(place()):
        python = find_python()
        say(f"making .venv with {python}")
        if subprocess.call([python, "-m", "venv", "--clear", str(VENV)]):
            fail(f"{python} could not make .venv; its message is above.")
    STAMP.write_text(place())  # half a stamp: an install that is interrupted from here on is done again
    say("installing into .venv; the first time takes a minute or two and 1.3 GB")
    pip = [str(PYTHON), "-m", "pip", "install", "--disable-pip-version-check"]
    if subprocess.call([*pip, "--constraint", "constraints.txt", "--editable", ".[test]"], cwd=str(ROOT)):
        fail(
            "pip could not install what is needed; its message is above. Check the network (behind a proxy, "
            "set HTTPS_PROXY) and the space on the disk, and run this command again."
        )
    STAMP.write_text(place() + asked.hexdigest())


def find_chromium():
    """The path of a Chromium or Chrome, or None."""
    return next(filter(None, map(shutil.which, CHROMIUMS)), None)


def get_chromium():
    """Install a browser for the tests where that can be done unasked, else say how."""
    if not find_chromium() and is_root() and shutil.which("apt-get"):
        say("installing Chromium for the browser tests")
        unasked = dict(os.environ, DEBIAN_FRONTEND="noninteractive")
        packages = ["chromium", "fonts-dejavu-core", "fonts-liberation"]
        subprocess.call(["apt-get", "-q", "update"], env=unasked)
        subprocess.call(["apt-get", "-q", "-y", "--no-install-recommends", "install", *packages], env=unasked)
    if not find_chromium():
        fate = "will fail" if os.environ.get("CI") else "will be skipped"
        say(
            f"found no Chromium or Chrome, so the browser tests {fate}; to get one: "
            "`sudo apt-get install chromium` on Debian, `brew install --cask google-chrome` on macOS"
        )


def become(module, *args):
    """Hand over to a module in .venv, which then answers every signal and sets the exit status."""
    command = [str(PYTHON), "-P", "-m", module, *args]  # -P: what lies in the reader's folder is not imported
    if os.name == "nt":  # there exec would give the prompt back at once
        sys.exit(subprocess.call(command))
    os.execv(command[0], command)


def main(command="", *rest):
    if command not in ("lab", "test", "site", "figures", "setup") or (command == "setup" and rest):
        sys.stderr.write(__doc__)
        return 2
    set_up()
    if command == "lab":
        os.chdir(str(ROOT / "notebooks"))
        become("jupyterlab", *["--allow-root"] * is_root(), *rest)
    if command == "test":
        get_chromium()
        os.chdir(str(ROOT))
        become("pytest", *rest)
    if command == "site":
        become("ttt_teach.site", "build", *(rest or [str(ROOT / "site")]))
    if command == "figures":
        become("ttt_teach.site", "figures", *rest)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(*sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
