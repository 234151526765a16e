"""Numbers are checked in x64, and nothing may be promoted or broadcast by accident."""

import gc
import os
import pathlib

# NumPy's matrices are small here and the cores taken: its threads would wait for each other, up to ten times as long as
# one alone computes. The workers of xdist and what the tests start inherit this and read it when they import NumPy.
os.environ["OMP_NUM_THREADS"] = "1"

import jax
import matplotlib
import pytest
from hypothesis import HealthCheck, settings
from jaxtyping import install_import_hook

from tests.nbval_figures import QUICKLY, Drawn
from tests.site_fixture import build_once

# Shapes and dtypes in the signatures of the forms are checked while tests run; users pay nothing for them.
ROOT = pathlib.Path(__file__).parent.parent
FORMS = [
    ".".join(form.relative_to(ROOT).with_suffix("").parts)
    for form in (ROOT / "ttt_teach" / "rules").glob("*/*.py")
    if form.stem != "__init__"
]

with install_import_hook(FORMS, "beartype.beartype"):
    import ttt_teach

# XLA's pool of threads has one for each core. The interpreter of GPU kernels blocks one for each warpgroup and one more
# for the kernel: with two cores a kernel of two warpgroups would wait for itself. NPROC is the size XLA asks for.
os.environ["NPROC"] = "8"
import ttt_teach.rules.tiles  # noqa: E402, F401 - which reads it

# Most of the time of these tests is spent compiling for small arrays once. Only here, and in notebooks under nbval: the
# site, and what else the tests start, compiles as it does for everybody.
os.environ["XLA_FLAGS"] = QUICKLY
jax.devices()
del os.environ["XLA_FLAGS"], os.environ["NPROC"]

# And what was compiled once is kept for the next run. Each process has its own: a file that one is writing would
# reach the other half done. No size: where one is given (as below, which a worker of xdist inherits) JAX looks at every
# file to add one, a tenth of a second for a thousand.
KEPT = ROOT / ".pytest_cache" / "jax"
worker = os.environ.get("PYTEST_XDIST_WORKER", "alone")
jax.config.update("jax_compilation_cache_dir", str(KEPT / worker))
jax.config.update("jax_compilation_cache_max_size", -1)
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)

# What the tests start shares one, since nbval and the site execute the same notebooks. Where a size is given JAX locks
# the folder (with filelock); only what took long to compile is kept, so that there are hundreds of files to look at.
os.environ["JAX_COMPILATION_CACHE_DIR"] = str(KEPT / "notebooks")
os.environ["JAX_COMPILATION_CACHE_MAX_SIZE"] = str(2**30)
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.2"
os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")
matplotlib.use("agg")


# To trace a program is to make many small objects that live: looking through them at every 700 new ones, as Python does
# unasked, takes a tenth of the time. What was imported stays, and need not be looked at again.
gc.freeze()
gc.set_threshold(20_000, 20, 50)


# Where other programs want the processor too, a draw may take as long as it likes.
settings.register_profile("suite", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("suite")


def pytest_configure(config):
    config.pluginmanager.register(Drawn())


@pytest.fixture(autouse=True, scope="module")
def forgotten():
    """Programs that earlier files compiled are let go of: each takes maps of memory, which Linux counts to 65530."""
    yield
    jax.clear_caches()


@pytest.fixture(scope="session")
def site(tmp_path_factory):
    """The static site of the notebooks as they are now, some of them executed afresh with every frame of a slider."""
    return build_once(tmp_path_factory)
