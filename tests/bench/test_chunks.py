"""The file that notebook 05 reads holds what the benchmark measures."""

import json
from pathlib import Path

import numpy as np

from ttt_teach.bench import chunks


def test_the_committed_times_are_of_the_sizes_measured_today():
    measured = json.loads((Path(chunks.__file__).parent / "results" / "mesa_chunks_h200.json").read_text())
    assert (measured["tokens"], measured["width"], measured["rounds"]) == (chunks.TOKENS, chunks.WIDTH, chunks.ROUNDS)
    assert tuple(measured["chunks"]) == chunks.SIZES
    assert {int(heads): len(ms) for heads, ms in measured["ms"].items()} == dict.fromkeys(
        chunks.HEADS, len(chunks.SIZES)
    )


def test_inputs_are_what_mesa_takes():
    q, k, v, beta, lam, log_decay = chunks.inputs(2)
    assert q.shape == k.shape == v.shape == (1, chunks.TOKENS, 2, chunks.WIDTH)
    assert beta.shape == log_decay.shape == (1, chunks.TOKENS, 2) and lam.shape == (2, chunks.WIDTH)
    assert np.allclose(np.linalg.norm(k, axis=-1), 1, atol=1e-6) and {x.dtype for x in (q, k, lam, log_decay)} == {
        q.dtype
    }
