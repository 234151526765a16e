"""What a Hopper GPU allows a kernel: the least time for its bytes and FLOPs, and how many of its blocks share an SM."""

from typing import NamedTuple

from ttt_teach.theory.sizes import positive, whole

THREADS = 128  # of a warpgroup, which is what a tensor core's product is issued by
MOST = 255  # registers of a thread


class Chip(NamedTuple):
    """An H200: what a copy and a large product reached on one, and what its SMs have."""

    bandwidth: float = 4.27e12  # bytes a second
    peak: float = 800e12  # FLOPs a second, 16-bit factors
    sms: int = 132
    shared: int = 233472  # bytes of an SM; each block takes RESERVED more than it asks for
    registers: int = 65536  # of an SM, 32 bits each


H200 = Chip()
RESERVED = 1024


def floor(nbytes: float, flops: float, chip: Chip = H200) -> float:
    """Milliseconds that neither can be faster than: max(bytes / bandwidth, FLOPs / peak)."""
    return 1e3 * max(positive("nbytes", nbytes) / chip.bandwidth, positive("flops", flops) / chip.peak)


def blocks(shared: int, registers: int, threads: int = THREADS, chip: Chip = H200) -> int:
    """Blocks that share an SM; 0 where not even one finds room.

    Args: shared: bytes a block asks for. registers: of each of its threads; they are dealt out by eights.
    """
    shared, registers, threads = whole(shared=shared, registers=registers, threads=threads)
    if registers > MOST:
        return 0
    return min(chip.shared // (shared + RESERVED), chip.registers // (threads * -(-registers // 8) * 8))


class Walk(NamedTuple):
    """What a block of linear attention's forward kernel needs (rules/linear/kernel.py), for one head and 64 columns."""

    threads: int
    shared: int  # bytes
    sums: int  # float32 numbers in the registers of a thread, without addresses and vectors
    nbytes: int  # of a token and head, all its blocks together: each number of q, k, v and o once
    flops: int  # of a token and head, all its blocks together


def walk(chunk: int, width: int, slots: int, columns: int = 64) -> Walk:
    """The counts of sizes that wgmma knows: chunk and width are multiples of 64, as K = V = width.

    A warpgroup for each 64 tokens. Shared memory: so many slots of q and k (chunk x width) and v (chunk x columns), the
    scores or the output, and S, 16 bits each. Registers: S in float32 and beside it the largest of what stands there
    at one time: scores and their decays; the two parts of o; what is written to S. FLOPs: q k', (scores) v, q S, k' v;
    each block makes the scores.
    """
    chunk, width, slots, columns = whole(chunk=chunk, width=width, slots=slots, columns=columns)
    threads = THREADS * -(-chunk // 64)
    wide = max(chunk, columns)  # the scores take chunk columns, and then the output
    shared = 2 * (slots * chunk * (2 * width + columns) + chunk * wide + width * columns)
    sums = (width * columns + max(2 * chunk * chunk, 2 * chunk * columns, width * columns)) // threads
    flops = 2 * (chunk * width * (width // columns) + chunk * width + 2 * width * width)
    return Walk(threads, shared, sums, 2 * 4 * width, flops)
