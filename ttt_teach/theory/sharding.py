"""What devices that share a LaCT layer send, and when the sending costs no time (LaCT Sec. 3.4).

P devices in a ring, each link as fast in one direction as in the other; a number moves in ``bytes_per_number``. What
one device sends is counted: all send as much, at the same time. Latency is left out. Every argument is positive, one
number or many; a ValueError names the one that is not.
"""

from numpy.typing import ArrayLike

from ttt_teach.theory.sizes import at_least, positive


def all_reduce(numbers: ArrayLike, devices: ArrayLike, bytes_per_number: int = 4) -> ArrayLike:
    """Bytes that each of P devices sends so that all have the sum of their arrays: 2 (P - 1) / P of the array.

    Half of it to add up a share of the array each (reduce-scatter), half to hand the shares round (all-gather).
    """
    numbers, size = positive("numbers", numbers), positive("bytes_per_number", bytes_per_number)
    devices = at_least("devices", devices, 1)
    return 2 * (devices - 1) / devices * numbers * size


def all_to_all(numbers: ArrayLike, devices: ArrayLike, bytes_per_number: int = 2) -> ArrayLike:
    """Bytes that each device sends to turn an array split by tokens into one split by heads, or back.

    Of the whole array a device holds one P-th, and keeps one P-th of that.
    """
    numbers, size = positive("numbers", numbers), positive("bytes_per_number", bytes_per_number)
    devices = at_least("devices", devices, 1)
    return (devices - 1) / devices**2 * numbers * size


def hidden_from(devices: ArrayLike, flops_per_byte: ArrayLike, bytes_per_number: int = 4) -> ArrayLike:
    """The least tokens in a chunk whose read takes as long as the all-reduce of its direction.

    A device reads C / P tokens with 2 S FLOPs each and sends 2 (P - 1) / P S numbers. S cancels: C = (P - 1) times the
    bytes of a number times the FLOPs that the device makes while its link moves a byte.
    """
    devices, size = at_least("devices", devices, 1), positive("bytes_per_number", bytes_per_number)
    return (devices - 1) * size * positive("flops_per_byte", flops_per_byte)


def crossover(state: ArrayLike, dim: ArrayLike, devices: ArrayLike) -> ArrayLike:
    """Tokens in a chunk at which splitting tokens sends as many bytes as splitting heads.

    All-reduce of S float32 numbers, against all-to-all of queries, keys, values and outputs, 4 d numbers a token in
    16 bits: C = P S / d. Longer chunks are cheaper to split by tokens.
    """
    return at_least("devices", devices, 1) * positive("state", state) / positive("dim", dim)
