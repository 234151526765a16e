"""run.py, with a stand-in for Python that notes what it is told to do instead of doing it."""

import ast
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet

ROOT = Path(__file__).parents[2]
COMMANDS = ["lab", "test", "site", "figures", "setup"]

# As python3.12 it makes an environment that holds a copy of itself, and notes where and how it was run.
STAND_IN = f"""#!/bin/sh
PATH={os.defpath}
told="$*"
case "$1" in
    -I) echo 3.12; exit ;;
    -c) exit 1 ;; # a probe that may import from the reader's folder proves nothing
    -P) shift ;;
esac
case "$1 $2" in
    "-m venv") rm -rf "$4"; mkdir -p "$4/bin"; cp "$0" "$4/bin/python" ;;
    "-m pip") [ -z "$PIP_SLEEPS" ] || exec sleep 60 ;;
esac
echo "$PWD: $told" >> "$LOG"
[ "$2" != "$FAILS" ] || exit 3
"""

# Runs a script as a Python does that cannot make environments: another one on the PATH must do it.
UNFIT_PYTHON = """
import runpy, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where the tests run in the background
sys.executable = ""
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


class Project:
    """A copy of run.py in a project of its own, and a PATH that holds what is put into ``bin``."""

    def __init__(self, folder: Path):
        self.root, self.bin, self.log = folder / "a project", folder / "bin", folder / "log"
        (self.root / "notebooks").mkdir(parents=True)
        self.bin.mkdir()
        for name in ("run.py", "pyproject.toml", "constraints.txt"):
            shutil.copy(ROOT / name, self.root)

    def add(self, name: str, script: str) -> None:
        (self.bin / name).write_text(script)
        (self.bin / name).chmod(0o755)

    def change(self, name: str) -> None:
        (self.root / name).write_text((self.root / name).read_text() + "# a line\n")

    def start(self, *arguments: str, **env: str) -> subprocess.Popen:
        return subprocess.Popen(
            [sys.executable, "-c", UNFIT_PYTHON, self.root / "run.py", *arguments],
            env={"PATH": str(self.bin), "HOME": str(self.bin), "LOG": str(self.log), **env},
            cwd=self.bin,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )

    def run(self, *arguments: str, **env: str) -> tuple[int, str]:
        process = self.start(*arguments, **env)
        words = process.communicate(timeout=60)[1].decode()
        return process.returncode, words

    def noted(self) -> list[str]:
        """What the stand-in was told since the last time, without the folder when that is the project's."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        self.log.unlink(missing_ok=True)
        return [line.removeprefix(f"{self.root}: ") for line in lines]


@pytest.fixture
def project(tmp_path):
    return Project(tmp_path.resolve())


@pytest.fixture
def ready(project):
    """A project whose environment is made."""
    project.add("python3.12", STAND_IN)
    assert project.run("setup")[0] == 0
    project.noted()
    return project


@pytest.fixture
def run(monkeypatch, tmp_path):
    """run.py as a module, on a machine that has nothing."""
    import run

    monkeypatch.setattr(run, "CHROMIUMS", ("chromium",))
    monkeypatch.setenv("PATH", str(tmp_path))
    return run


MAKE = "-m venv --clear {}"
INSTALL = "-m pip install --disable-pip-version-check --constraint constraints.txt --editable .[test]"


class TestUsage:
    @pytest.mark.parametrize("arguments", [[], ["dance"], ["--help"], ["setup", "everything"]])
    def test_anything_else_shows_every_command(self, project, arguments):
        status, words = project.run(*arguments)
        assert status == 2
        assert all(f"run.py {command} " in words for command in COMMANDS)
        assert not project.noted()

    def test_an_old_python_can_read_it(self):
        ast.parse((ROOT / "run.py").read_text(), feature_version=(3, 7))

    def test_versions_are_those_of_pyproject(self, run):
        asked = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]
        assert set(SpecifierSet(asked).filter(f"3.{minor}" for minor in range(30))) == set(run.VERSIONS)


class TestPython:
    @pytest.mark.parametrize(
        "script",
        [None, "#!/bin/sh\nexit 127\n", "#!/bin/sh\necho 3.11\n", "#!/bin/sh\necho no version\n"],
        ids=["absent", "shim of nothing", "too old", "garbled"],
    )
    def test_none_is_one_sentence(self, project, script):
        if script:
            project.add("python3.12", script)
        status, words = project.run("test")
        assert status == 1
        assert words.startswith("run.py: found no Python 3.12, 3.13 or 3.14") and words.count("\n") == 1
        assert all(how in words for how in ("apt-get install python3-venv", "brew install", "pyenv install"))

    def test_pyenv_has_one(self, project):
        home = project.bin / ".pyenv/versions/3.13.2/bin"
        home.mkdir(parents=True)
        project.add("python", STAND_IN)
        (project.bin / "python").rename(home / "python")
        status, words = project.run("setup")
        assert status == 0
        assert f"making .venv with {home / 'python'}" in words


class TestSetUp:
    def test_first_makes_and_installs(self, project):
        project.add("python3.12", STAND_IN)
        status, words = project.run("setup")
        assert status == 0
        assert [line.split(" ")[1] for line in words.splitlines()] == ["making", "installing"]
        made, installed = project.noted()
        assert made.endswith(MAKE.format(project.root / ".venv"))
        assert installed == INSTALL

    def test_second_does_nothing(self, ready):
        assert ready.run("setup") == (0, "")
        assert not ready.noted()

    @pytest.mark.parametrize("name", ["pyproject.toml", "constraints.txt"])
    def test_other_requirements_install_again(self, ready, name):
        ready.change(name)
        assert ready.run("setup")[0] == 0
        assert ready.noted() == [INSTALL]

    def test_failed_install_is_one_sentence_and_done_again(self, project):
        project.add("python3.12", STAND_IN)
        status, words = project.run("test", FAILS="pip")
        assert status == 1
        assert words.splitlines()[-1].startswith("run.py: pip could not install") and "network" in words
        assert len(project.noted()) == 2
        assert project.run("setup")[0] == 0
        assert project.noted() == [INSTALL]

    def test_failed_venv_is_one_sentence_and_done_again(self, project):
        project.add("python3.12", STAND_IN)
        status, words = project.run("test", FAILS="venv")
        assert status == 1
        assert words.splitlines()[-1].endswith("could not make .venv; its message is above.")
        assert project.run("setup")[0] == 0
        assert project.noted()[-1] == INSTALL

    def test_vanished_python_is_made_again(self, ready):
        (ready.root / ".venv/bin/python").unlink()
        assert ready.run("setup")[0] == 0
        assert len(ready.noted()) == 2

    def test_moved_project_is_made_again(self, ready):
        ready.root = ready.root.rename(ready.root.with_name("elsewhere"))
        assert ready.run("setup")[0] == 0
        assert len(ready.noted()) == 2

    def test_interrupt_is_quiet(self, ready):
        ready.change("constraints.txt")
        process = ready.start("setup", PIP_SLEEPS="1")
        process.stderr.readline()  # it says that it is installing
        time.sleep(0.5)
        os.killpg(process.pid, signal.SIGINT)
        assert (process.communicate(timeout=30)[1], process.returncode) == (b"", 130)
        assert ready.run("setup")[0] == 0
        assert ready.noted() == [INSTALL]


class TestCommands:
    @pytest.mark.parametrize(
        ("arguments", "told"),
        [
            ("test", "-P -m pytest"),
            ("test -k 'two words' --co", "-P -m pytest -k two words --co"),
            ("site", "{bin}: -P -m ttt_teach.site build {root}/site"),
            ("site out", "{bin}: -P -m ttt_teach.site build out"),
            ("figures", "{bin}: -P -m ttt_teach.site figures"),
        ],
    )
    def test_hands_over(self, ready, arguments, told):
        ready.run(*shlex.split(arguments))
        assert ready.noted() == [told.format(bin=ready.bin, root=ready.root)]

    def test_lab_opens_the_notebooks(self, ready, run):
        ready.run("lab", "--port=9999", "02.ipynb")
        (told,) = ready.noted()
        root = "--allow-root " if run.is_root() else ""
        assert told == f"{ready.root}/notebooks: -P -m jupyterlab {root}--port=9999 02.ipynb"

    def test_exit_status_is_the_tests(self, ready):
        assert ready.run("test", FAILS="pytest")[0] == 3


class TestChromium:
    @pytest.mark.parametrize(("ci", "fate"), [("", "skipped"), ("true", "fail")])
    def test_none_says_what_follows(self, run, monkeypatch, capsys, ci, fate):
        monkeypatch.setenv("CI", ci)
        run.get_chromium()
        words = capsys.readouterr().err
        assert fate in words and "apt-get install chromium" in words and words.count("\n") == 1

    def test_found(self, run, tmp_path, capsys):
        shutil.copy(shutil.which("true", path=os.defpath), tmp_path / "chromium")
        run.get_chromium()
        assert run.find_chromium() == str(tmp_path / "chromium")
        assert capsys.readouterr().err == ""

    def test_root_installs_it(self, run, monkeypatch, tmp_path, capsys):
        apt, chromium = tmp_path / "apt-get", tmp_path / "chromium"
        apt.write_text(f"#!/bin/sh\ncase $* in *chromium*) PATH={os.defpath} cp $0 {chromium} ;; esac\n")
        apt.chmod(0o755)
        monkeypatch.setattr(run, "is_root", lambda: True)
        run.get_chromium()
        assert run.find_chromium() == str(chromium)
        assert capsys.readouterr().err == "run.py: installing Chromium for the browser tests\n"
