"""The files that say what the project asks of a machine agree, and no file is tied to one machine."""

import functools
import os
import re
import subprocess
import sys
import tomllib
from importlib.metadata import distribution
from itertools import chain
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
CONDA_NAMES = {"matplotlib": "matplotlib-base"}  # the whole one brings a GUI toolkit
CHANNELS = ["conda-forge"]
TEST_COMMAND = "python3 run.py test"

PIN = re.compile(r"[A-Za-z0-9._-]+==[0-9][0-9a-z.]*( ; [a-z_]+ == '[a-z0-9]+')?")

# Written so that this file does not name them; the slash comes first, as a search for it is fast.
TIED_TO_A_MACHINE = {
    "a path": re.compile(r"/(?<![\w.:/-]/)(?:home|root|work|Users)/"),
    "a package index": re.compile(r"\b(?:pypi\.org|pythonhosted\.org|npmjs\.org|anaconda\.org)\b"),
}


def asked() -> dict[str, SpecifierSet]:
    """Every package that pyproject.toml names, in an extra or not, and its range."""
    named = chain(PROJECT["dependencies"], *PROJECT["optional-dependencies"].values())
    return {r.name: r.specifier for r in map(Requirement, named) if r.name != PROJECT["name"]}


def pin_lines() -> list[str]:
    return [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]


def pins() -> list[tuple[str, str]]:
    """Every package of constraints.txt and its version."""
    requirements = map(Requirement, pin_lines())
    return [(canonicalize_name(r.name), str(r.specifier).removeprefix("==")) for r in requirements]


def installed() -> set[str]:
    """The names of all that an installation of the project with its extras brings to this machine."""
    names, queue = set(), [Requirement(f"{PROJECT['name']}[test]")]
    while queue:
        by = queue.pop()
        for r in map(Requirement, distribution(by.name).requires or []):
            name = canonicalize_name(r.name)
            if name not in names and any(applies(r, extra) for extra in by.extras or {""}):
                queue.append(r)
                names.add(name)
    return names - {PROJECT["name"]}


def applies(requirement: Requirement, extra: str) -> bool:
    return not requirement.marker or requirement.marker.evaluate({"extra": extra})


@functools.cache
def text_lines() -> list[tuple[Path, str]]:
    """Every line of every text file that is committed, or would be."""
    if not (ROOT / ".git").exists():
        pytest.skip("only git knows which files belong to the project")
    git = ["git", "-c", "safe.directory=*"]  # in a container the checkout may be somebody else's
    listed = [*git, "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    names = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
    found = []
    for path in filter(Path.is_file, map(ROOT.joinpath, filter(None, names))):
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except UnicodeDecodeError:
            continue  # not text
        name = path.relative_to(ROOT)
        found += [(name, line) for line in lines]
    return found


class TestConda:
    FILE = yaml.safe_load((ROOT / "environment.yml").read_text())

    def test_asks_for_the_same(self):
        *conda, last = self.FILE["dependencies"]
        requirements = [Requirement(line) for line in [*conda, *last["pip"][:-1]]]
        expected = {CONDA_NAMES.get(name, name): ranges for name, ranges in asked().items()}
        expected |= {"python": SpecifierSet(PROJECT["requires-python"]), "pip": SpecifierSet()}
        assert {r.name: r.specifier for r in requirements} == expected
        assert last["pip"][-1] == "-e ."

    def test_channels_are_open(self):
        assert self.FILE["channels"] == CHANNELS


class TestConstraints:
    def test_are_versions_and_nothing_else(self):
        assert [line for line in pin_lines() if not PIN.fullmatch(line)] == []

    def test_are_given_once(self):
        assert len(dict(pins())) == len(pins())

    def test_lie_in_the_ranges_of_pyproject(self):
        versions = dict(pins())
        assert [name for name, ranges in asked().items() if versions[name] not in ranges] == []

    def test_cover_everything_that_is_installed(self):
        assert installed() - dict(pins()).keys() == set()

    @pytest.mark.parametrize("line", ["jax>=0.11", "jax @ https://example.org/jax.whl", "-i x", "jax==0.11 \\"])
    def test_a_planted_line_is_found(self, line):
        assert not PIN.fullmatch(line)


class TestFiles:
    def test_ruff_is_silent(self):
        found = subprocess.run([sys.executable, "-m", "ruff", "check", "--quiet", "."], cwd=ROOT, capture_output=True)
        assert found.stdout.decode() == "" and found.returncode == 0

    def test_python_version_is_supported(self):
        assert (ROOT / ".python-version").read_text().strip() in SpecifierSet(PROJECT["requires-python"])

    def test_ci_runs_the_test_command_of_the_readme(self):
        script = ROOT / ".ci/run"
        assert os.access(script, os.X_OK)
        assert script.read_text().splitlines()[-1] == TEST_COMMAND
        assert TEST_COMMAND in (ROOT / "README.md").read_text()

    @pytest.mark.parametrize("what", TIED_TO_A_MACHINE)
    def test_none_is_tied_to_a_machine(self, what):
        tied = TIED_TO_A_MACHINE[what].search
        assert [f"{path}: {line.strip()[:100]}" for path, line in text_lines() if tied(line)] == []

    @pytest.mark.parametrize(("what", "words"), [("a path", "/ work/x"), ("a package index", "pypi .org")])
    def test_a_planted_one_is_found(self, what, words):
        assert not TIED_TO_A_MACHINE[what].search(words)
        assert TIED_TO_A_MACHINE[what].search(words.replace(" ", ""))
