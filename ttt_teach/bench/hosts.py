"""LaCT with the tokens of every chunk spread over all devices of several hosts, against one device.

python -m ttt_teach.bench.hosts --coordinator HOST0:9876 --hosts 2 --host 0    # on the first host
python -m ttt_teach.bench.hosts --coordinator HOST0:9876 --hosts 2 --host 1    # on the second, at the same time
python -m ttt_teach.bench.hosts --rehearse 2                                   # both, on this machine's processor
"""

import argparse
import os
import socket
import subprocess
import sys
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from ttt_teach.rules import door
from ttt_teach.rules.lact import SwiGLU, lact
from ttt_teach.rules.lact.sharded import sharded

CHUNKS, CHUNK, HEADS, WIDTH, HIDDEN = 3, 64, 2, 16, 24
MODULE = "ttt_teach.bench.hosts"
MARK = ">"  # before what a host says; the network library writes there too
LIMIT = 120  # seconds for a rehearsal
DEVICES = 2  # of each host in a rehearsal


def main(arguments=None) -> None:
    parser = argparse.ArgumentParser(prog="python -m ttt_teach.bench.hosts", description=__doc__.splitlines()[0])
    parser.add_argument("--coordinator", metavar="HOST:PORT", help="the first host and a free port of it")
    parser.add_argument("--hosts", type=int, help="how many there are")
    parser.add_argument("--host", type=int, help="which one this is, from 0")
    parser.add_argument("--rehearse", type=int, metavar="N", help="N hosts with two devices each, on this machine")
    asked = parser.parse_args(arguments)
    try:
        check(asked)
    except ValueError as error:
        parser.error(str(error))
    if asked.rehearse is not None:
        print(rehearse(asked.rehearse))
    else:
        jax.config.update("jax_enable_x64", True)
        jax.distributed.initialize(asked.coordinator, asked.hosts, asked.host)
        print(f"{MARK} {run()}", flush=True)


def check(asked: argparse.Namespace) -> None:
    """Raises ValueError unless the options are those of one host, all three, or of a rehearsal."""
    of_one = asked.coordinator, asked.hosts, asked.host
    if asked.rehearse is not None:
        if of_one != (None, None, None):
            raise ValueError(
                "--rehearse starts every host itself; expected no --coordinator, --hosts or --host with it"
            )
        tokens_divide(asked.rehearse, DEVICES)
        return
    if None in of_one:
        raise ValueError("expected --coordinator, --hosts and --host, or --rehearse")
    name, _, port = asked.coordinator.rpartition(":")
    if not (name and port.isdecimal() and 0 < int(port) < 2**16):
        raise ValueError(f"--coordinator is {asked.coordinator!r}; expected HOST:PORT")
    if not 0 <= asked.host < asked.hosts:
        raise ValueError(f"--host is {asked.host} of --hosts {asked.hosts}; expected one from 0, below --hosts")


def tokens_divide(hosts: int, devices: int) -> None:
    together = door.count("hosts", hosts) * door.count("devices", devices)
    if CHUNK % together:
        raise ValueError(f"hosts * devices is {together}; expected a number that divides the {CHUNK} tokens of a chunk")


def run() -> str:
    """What this host has to say of its own tokens."""
    mesh = Mesh(jax.devices(), ("devices",))
    q, k, v, lr, weights = draw()
    layout = NamedSharding(mesh, P(None, None, "devices"))

    def spread(x):
        """Each host makes the tokens of its own devices; elsewhere from its own part of the data."""
        return jax.make_array_from_callback(x.shape, layout, lambda index: x[index])

    o, W = sharded(*map(spread, (q, k, v, lr)), weights, mesh=mesh, tokens="devices")
    alone, last = one_device(q, k, v, lr, weights)
    off = max(np.abs(part.data - alone[part.index]).max() for part in o.addressable_shards)
    apart = max(np.abs(w.addressable_data(0) - y).max() for w, y in zip(W, last, strict=True))
    devices = f"{jax.local_device_count()} of {mesh.size} devices"
    host = f"host {jax.process_index()} of {jax.process_count()}, {devices}"
    return f"{host}: outputs within {off:.0e}, weights within {apart:.0e} of one device"


def draw() -> tuple:
    """Tokens in chunks and initial weights, the same on every host."""
    rng = np.random.default_rng(15)
    q, k, v = rng.normal(size=(3, 1, CHUNKS, CHUNK, HEADS, WIDTH))
    lr = rng.uniform(0.1, 1, (1, CHUNKS, CHUNK, HEADS, 3))
    sizes = ((HIDDEN, WIDTH), (HIDDEN, WIDTH), (WIDTH, HIDDEN))
    return q, k, v, lr, SwiGLU(*(rng.normal(size=(HEADS, *size)) / WIDTH**0.5 for size in sizes))


def one_device(q, k, v, lr, weights):
    """The same by ``lact``, which knows nothing of meshes, on this host's first device."""
    flat = (x.reshape(1, CHUNKS * CHUNK, *x.shape[3:]) for x in (q, k, v, lr))
    with jax.default_device(jax.local_devices()[0]):
        o, state = lact(*flat, weights, chunk=CHUNK)
    return np.asarray(o).reshape(v.shape), state.weights


def rehearse(hosts: int, devices: int = DEVICES) -> str:
    """Start so many hosts as processes of this machine, with virtual devices of its processor; what they print.

    Raises RuntimeError with what a process said as soon as one fails, subprocess.TimeoutExpired after two minutes,
    ValueError for devices that the tokens of a chunk cannot be shared among.
    """
    tokens_divide(hosts, devices)
    with socket.socket() as free:
        free.bind(("localhost", 0))
        coordinator = f"localhost:{free.getsockname()[1]}"
    quickly = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"  # compiled, to run once
    flags = f"--xla_force_host_platform_device_count={devices} {quickly}"
    env = dict(os.environ, JAX_PLATFORMS="cpu", JAX_CPU_COLLECTIVES_IMPLEMENTATION="gloo", XLA_FLAGS=flags)
    command = [sys.executable, "-m", MODULE, "--coordinator", coordinator, "--hosts", str(hosts)]
    started = [
        subprocess.Popen(
            [*command, "--host", str(host)], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for host in range(hosts)
    ]
    with ThreadPoolExecutor(hosts) as pool:  # the others wait for a host that died, so all are watched at once
        ends = [pool.submit(outcome, process) for process in started]
        try:
            ended, _ = wait(ends, return_when=FIRST_EXCEPTION)
        finally:
            for process in started:
                process.kill()
    for end in ended:  # those that ended before any was killed
        end.result()
    return "\n".join(end.result().rpartition(MARK)[2].strip() for end in ends)


def outcome(process: subprocess.Popen) -> str:
    """What a host printed, once it has ended."""
    words, trouble = process.communicate(timeout=LIMIT)
    if process.returncode:
        raise RuntimeError(f"a host ended with {process.returncode}: {trouble[-2000:]}")
    return words


if __name__ == "__main__":
    main()
