"""Test-time-training sequence layers in JAX: derived, run, broken and sped up."""

from ttt_teach.rules.attention import attention
from ttt_teach.rules.delta import delta
from ttt_teach.rules.lact import LaCTState, SwiGLU, lact
from ttt_teach.rules.linear import linear
from ttt_teach.rules.longhorn import longhorn
from ttt_teach.rules.mesa import MesaState, mesa
from ttt_teach.rules.osdn import OSDNState, osdn
from ttt_teach.rules.rglru import rglru
from ttt_teach.solvers import CG, PCG

__all__ = [
    "CG",
    "PCG",
    "LaCTState",
    "MesaState",
    "OSDNState",
    "SwiGLU",
    "attention",
    "delta",
    "lact",
    "linear",
    "longhorn",
    "mesa",
    "osdn",
    "rglru",
]
