"""Trainable layers and language models (Equinox). Not imported by ``import ttt_teach``: ``from ttt_teach import nn``.

Everything that is no array is static, so ``jax.jit``, ``jax.grad``, ``jax.vmap`` and ``jax.tree.map`` take a model as
an argument like any other. A model computes in the dtype of its parameters; gates, norms, memories and logits are kept
in at least float32.
"""

from ttt_teach.nn.attention import Attention
from ttt_teach.nn.fast_weights import GLA, DeltaNet, FastWeights
from ttt_teach.nn.hawk import Hawk
from ttt_teach.nn.lact import LaCT
from ttt_teach.nn.lm import LM, SIZES, VOCAB, Block, backbone, cast, hawk, hawk_mesa, mesanet, parameters
from ttt_teach.nn.mesa import Mesa, with_solver
from ttt_teach.nn.osdn import OSDN
from ttt_teach.nn.parts import MLP, over_last
from ttt_teach.nn.train import Fit, fit

__all__ = [
    "GLA",
    "LM",
    "MLP",
    "OSDN",
    "SIZES",
    "VOCAB",
    "Attention",
    "Block",
    "DeltaNet",
    "FastWeights",
    "Fit",
    "Hawk",
    "LaCT",
    "Mesa",
    "backbone",
    "cast",
    "fit",
    "hawk",
    "hawk_mesa",
    "mesanet",
    "over_last",
    "parameters",
    "with_solver",
]
