"""The loader: the shipped arrays, a reader's own, and every kind of file that is not what it should be."""

import pathlib
import tempfile
import zipfile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ttt_teach.tasks import load_qkv, minilm_qkv, unit


@pytest.fixture
def write(tmp_path):
    def write(**arrays):
        good = {n: np.random.default_rng(0).normal(size=(5, 2, 3)).astype(np.float32) for n in "qkv"}
        path = tmp_path / "arrays.npz"
        np.savez(path, **{n: x for n, x in (good | arrays).items() if x is not None})
        return path

    return write


@pytest.mark.parametrize("text", ["plain", "twice"])
@pytest.mark.parametrize("layer", [1, 4])
def test_shipped_arrays(text, layer):
    for x in minilm_qkv(text, layer):
        assert x.shape == (512, 4, 32)
        assert x.dtype == np.float32


def test_shipped_text_twice_repeats():
    """Tokens 1 to 255 stand again at 256 to 510: their values in layer 1 point the same way, neighbours' do not."""
    v = unit(minilm_qkv("twice", 1).v)
    alike = {shift: np.sum(v[1:250] * v[1 + shift : 250 + shift], -1).mean() for shift in (254, 255, 256)}
    assert alike[255] > 0.7 > 0.1 > max(alike[254], alike[256])


def test_shipped_names_are_checked():
    with pytest.raises(ValueError, match="text is 'once'; expected 'plain' or 'twice'"):
        minilm_qkv("once")
    with pytest.raises(ValueError, match="layer is 2; expected 1 or 4"):
        minilm_qkv("plain", 2)


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 4), st.integers(1, 3), st.integers(1, 4), st.integers(1, 4), st.sampled_from("efd"))
def test_round_trip(T, H, K, V, code):
    rng = np.random.default_rng(0)
    arrays = {n: rng.normal(size=(T, H, V if n == "v" else K)).astype(code) for n in "qkv"}
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "mine.npz"
        np.savez(path, **arrays)
        read = load_qkv(path)
    for name, x in zip("qkv", read, strict=True):
        np.testing.assert_array_equal(x, arrays[name])
        assert x.dtype == (np.float64 if code == "d" else np.float32)


def test_prefix(write):
    k = np.ones((5, 2, 3))
    path = write(**{f"deep/{n}": k for n in "qkv"})
    assert (load_qkv(path, "deep").k == 1).all()
    with pytest.raises(ValueError, match="no array 'wrong/q'; it has deep/k, deep/q"):
        load_qkv(path, "wrong")


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"v": None}, "the file has no array 'v'; it has k, q"),
        ({"q": np.ones((5, 2, 3), np.int64)}, "q has dtype int64; expected floating-point"),
        ({"k": np.ones((5, 2), np.float32)}, r"k has shape \[5, 2\]; expected \[T, H, D\]"),
        ({"k": np.ones((5, 2, 4))}, r"k has shape \[5, 2, 4\]; expected \[5, 2, 3\] as q"),
        ({"v": np.ones((4, 2, 3))}, r"v has shape \[4, 2, 3\]; expected \[5, 2, V\]"),
        ({"q": np.ones((0, 2, 3))}, r"q has shape \[0, 2, 3\]; expected .* none of them 0"),
        (
            {"v": np.where(np.arange(30).reshape(5, 2, 3) == 8, np.nan, 1.0)},
            r"v holds nan at \[1, 0, 2\]; expected finite",
        ),
        ({"k": np.full((5, 2, 3), np.inf)}, r"k holds inf at \[0, 0, 0\]; expected finite"),
        ({"q": np.array(["a", "b"])}, "q has dtype <U1; expected floating-point"),
    ],
)
def test_wrong_arrays_are_named(write, arrays, message):
    with pytest.raises(ValueError, match=message):
        load_qkv(write(**arrays))


class Boom:
    """Unpickling this would write a file."""

    def __reduce__(self):
        return pathlib.Path("boom").write_text, ("executed",)


def test_pickles_are_refused_and_not_run(write, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = write(q=np.array([Boom()], dtype=object))
    with pytest.raises(ValueError, match="q cannot be read; expected plain numbers"):
        load_qkv(path)
    assert not (tmp_path / "boom").exists()


def test_what_is_no_archive_is_named(tmp_path):
    text = tmp_path / "notes.npz"
    text.write_text("q, k, v")
    with pytest.raises(ValueError, match=r"notes.npz'; expected an .npz archive \(this is no zip file\)"):
        load_qkv(text)
    empty = tmp_path / "empty.npz"
    empty.write_bytes(b"")
    with pytest.raises(ValueError, match="expected an .npz archive"):
        load_qkv(empty)
    single = tmp_path / "single.npy"
    np.save(single, np.ones(3))
    with pytest.raises(ValueError, match="a single array; expected an .npz archive"):
        load_qkv(single)
    with pytest.raises(FileNotFoundError):
        load_qkv(tmp_path / "absent.npz")


def test_damaged_archives_are_named(write):
    path = write()
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match="expected an .npz archive"):
        load_qkv(path)
    spoiled = bytearray(whole)
    spoiled[whole.index(b"NUMPY") + 200] ^= 0xFF  # inside q's numbers: the checksum of the archive notices
    path.write_bytes(spoiled)
    with pytest.raises(ValueError, match="q cannot be read"):
        load_qkv(path)


@pytest.mark.parametrize("shape", ["(1000000000000, 1, 1)", "(True, 1, 1)", "(1, 1, 1", "[" * 5000])
def test_hostile_headers_are_named(tmp_path, shape):
    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}".encode().ljust(117) + b"\n"
    path = tmp_path / "hostile.npz"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("q.npy", b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header)
    with pytest.raises(ValueError, match="q cannot be read"):
        load_qkv(path)


def test_a_number_is_no_path():
    with pytest.raises(TypeError):
        load_qkv(1)


def test_a_zip_of_something_else_is_named(tmp_path):
    path = tmp_path / "other.npz"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("q.npy", "not an array")
    with pytest.raises(ValueError, match="q is not in numpy's .npy format"):
        load_qkv(path)


def test_unit():
    x = unit(np.array([[3.0, 4.0], [0.0, 0.0]]))
    np.testing.assert_allclose(x, [[0.6, 0.8], [0, 0]])
    np.testing.assert_allclose(unit(np.array([[3e-200, 4e-200], [3e200, 4e200]])), [[0.6, 0.8], [0.6, 0.8]])
