"""What the compiler for Hopper makes of a rule's kernels, without a GPU: registers of a thread, and bytes it spills.

    pip install --no-deps jax-cuda13-plugin==0.11.2 jax-cuda13-pjrt==0.11.2
    python -m ttt_teach.bench.registers mesa "lact 760M"

JAX compiles for a device that is only described as for one that is there, ptxas included. A thread has 255 registers
at most, 168 with three warpgroups a block; two blocks of one warpgroup fill a multiprocessor with 255 each. What does
not fit is spilled to memory. The complaint about cuDNN, which is not needed, is JAX's.
"""

import argparse
import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from unittest import mock

import jax
from jax.experimental import topologies

from ttt_teach.bench import device
from ttt_teach.bench.peers import Jax
from ttt_teach.rules import tiles

PLUGIN = "jax_cuda13_plugin"
H200 = """
gpu_device_info {
  threads_per_block_limit: 1024  threads_per_warp: 32  threads_per_core_limit: 2048
  shared_memory_per_block: 49152  shared_memory_per_core: 233472  shared_memory_per_block_optin: 232448
  core_count: 132  fpus_per_core: 128  registers_per_core_limit: 65536  registers_per_block_limit: 65536
  block_dim_limit_x: 2147483647  block_dim_limit_y: 65535  block_dim_limit_z: 65535
  memory_bandwidth: 4800000000000  l2_cache_size: 52428800  clock_rate_ghz: 1.98  device_memory_size: 150000000000
  cuda_compute_capability { major: 9  minor: 0 }
}
platform_name: "CUDA"
dnn_version_info { major: 9  minor: 12 }
device_description_str: "NVIDIA H200"
"""
ALLOTTED = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads\n.*?Used (\d+) registers")


def compile_for_hopper(name: str, part: str) -> None:
    """Compile the first of ours of a case of the benchmark, which is its kernel; ptxas says what it did on stderr."""
    case = device.CASES[name]
    there = topologies.get_topology_desc("h200", platform="cuda", target_config=H200, topology="1x1x1").devices[0]
    place = jax.sharding.SingleDeviceSharding(there)
    shapes = jax.eval_shape(partial(device.draw, case))
    args, do = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place), shapes)
    side = Jax(partial(case.rule, **case.ours["kernel"], **case.shared))
    with mock.patch.object(tiles, "no_place", lambda warpgroups=1: None):
        side.forward(args) if part == "forward" else side.both(args, do)


def allotted(said: str) -> Iterator[tuple[int, int, int]]:
    """Of each kernel the registers of a thread, and the bytes that are stored and loaded because they did not fit."""
    for stores, loads, registers in ALLOTTED.findall(said):
        yield int(registers), int(stores), int(loads)


def lines(name: str) -> Iterator[str]:
    """A line for each pass of a case, its kernels in the order in which they were compiled. Raises RuntimeError."""
    for part in device.PASSES:
        command = [sys.executable, "-m", __spec__.name, "--compile", name, part]
        env = os.environ | {"MOSAIC_GPU_DUMP_PTXAS": "1", "JAX_PLATFORMS": "cpu"}
        ran = subprocess.run(command, env=env, capture_output=True, text=True)
        if ran.returncode:
            raise RuntimeError(f"{name}, {part}: {ran.stderr.strip().splitlines()[-1]}")
        kernels = [
            f"{registers}" + (f" (spills {stores} + {loads} bytes)" if stores + loads else "")
            for registers, stores, loads in allotted(ran.stdout + ran.stderr)
        ]
        yield f"{name}, {part}: {', '.join(kernels)}"


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m ttt_teach.bench.registers", description=__doc__.split("\n\n")[0])
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"of {', '.join(device.CASES)}; all if none is named")
    parser.add_argument("--compile", nargs=2, metavar=("CASE", "PASS"), help="one, and say no more than the compiler")
    asked = parser.parse_args(arguments)
    if asked.compile:
        return compile_for_hopper(*asked.compile)
    if unknown := [name for name in asked.cases if name not in device.CASES]:
        parser.error(f"{unknown[0]} is no case; expected {', '.join(device.CASES)}")
    if importlib.util.find_spec(PLUGIN) is None:
        parser.exit(2, f"{PLUGIN} is not installed: pip install --no-deps jax-cuda13-plugin jax-cuda13-pjrt\n")
    for name in asked.cases or device.CASES:
        for line in lines(name):
            print(line, flush=True)


if __name__ == "__main__":
    main()
