"""Queries, keys and values from an ``.npz`` file: the shipped ones, or a reader's own."""

import os
import zipfile
from importlib import resources
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

SHIPPED = resources.files("ttt_teach.tasks") / "data" / "minilm_qkv.npz"


class QKV(NamedTuple):
    """One layer's arrays, float32 (float64 if the file holds float64)."""

    q: Float[np.ndarray, "T H K"]
    k: Float[np.ndarray, "T H K"]
    v: Float[np.ndarray, "T H V"]


def load_qkv(path: str | os.PathLike, prefix: str = "") -> QKV:
    """Read arrays named q, k and v (or ``prefix/q``, ...) from an ``.npz``; nothing in the file is executed.

    Args:
        path: the file, e.g. written by ``np.savez(path, q=q, k=k, v=v)``.
        prefix: the group inside it, e.g. ``"plain/layer1"`` in the shipped file.

    Returns:
        q, k ``[T, H, K]`` and v ``[T, H, V]``; half precision is widened to float32.

    Raises:
        ValueError: no ``.npz`` archive, a missing or pickled array, not floating-point, not finite, shapes that
            disagree. FileNotFoundError: no such file.
    """
    with open(os.fspath(path), "rb") as file:
        try:
            archive = np.load(file, allow_pickle=False)
        except Exception as problem:  # whatever a damaged or hostile file makes numpy raise
            zipped = zipfile.is_zipfile(file)  # else numpy speaks of pickles, and how to load them unsafely
            reason = problem if zipped else "this is no zip file"
            raise ValueError(f"path is {str(path)!r}; expected an .npz archive ({reason})") from None
        if not isinstance(archive, np.lib.npyio.NpzFile):
            raise ValueError(f"path is {str(path)!r}, a single array; expected an .npz archive with q, k and v")
        q, k, v = (_read(archive, f"{prefix.strip('/')}/{name}".lstrip("/")) for name in "qkv")
    if k.shape != q.shape:
        raise ValueError(f"k has shape {list(k.shape)}; expected {list(q.shape)} as q")
    if v.shape[:2] != q.shape[:2]:
        raise ValueError(f"v has shape {list(v.shape)}; expected [{q.shape[0]}, {q.shape[1]}, V], T and H as in q")
    return QKV(q, k, v)


def _read(archive: np.lib.npyio.NpzFile, name: str) -> np.ndarray:
    if name not in archive.files:
        raise ValueError(f"the file has no array {name!r}; it has {', '.join(sorted(archive.files)) or 'none'}")
    try:
        x = archive[name]
    except Exception as problem:  # as above
        raise ValueError(f"{name} cannot be read; expected plain numbers ({problem})") from None
    if not isinstance(x, np.ndarray):
        raise ValueError(f"{name} is not in numpy's .npy format; expected an array written by np.savez")
    if not np.issubdtype(x.dtype, np.floating):
        raise ValueError(f"{name} has dtype {x.dtype}; expected floating-point numbers")
    if x.ndim != 3 or 0 in x.shape:
        raise ValueError(f"{name} has shape {list(x.shape)}; expected [T, H, D], none of them 0")
    x = x.astype(np.float64 if x.dtype.itemsize >= 8 else np.float32)
    if not np.isfinite(x).all():
        first = ", ".join(map(str, np.argwhere(~np.isfinite(x))[0]))
        raise ValueError(f"{name} holds {x[~np.isfinite(x)][0]} at [{first}]; expected finite numbers")
    return x


def minilm_qkv(text: str = "plain", layer: int = 1) -> QKV:
    """Real heads: 512 tokens, 4 heads, width 32, from the encoder MiniLM-L6 (Apache-2.0).

    The text is the opening of the United States Constitution (public domain): ``"plain"`` 512 tokens, or
    ``"twice"`` the same 255 tokens twice. Layers 1 and 4 were kept, their heads 0 to 3.

    Raises ValueError: another text or layer.
    """
    if text not in ("plain", "twice"):
        raise ValueError(f"text is {text!r}; expected 'plain' or 'twice'")
    if layer not in (1, 4):
        raise ValueError(f"layer is {layer!r}; expected 1 or 4")
    with resources.as_file(SHIPPED) as path:
        return load_qkv(path, f"{text}/layer{layer}")


def unit(x):
    """x with its last axis scaled to length 1, as MesaNet normalises keys and queries; a zero vector stays zero."""
    largest = np.abs(x).max(axis=-1, keepdims=True, initial=0)  # first, or squares under- and overflow
    x = x / np.where(largest > 0, largest, 1)
    return x / np.where(largest > 0, np.linalg.norm(x, axis=-1, keepdims=True), 1)
