"""Test-time-training sequence layers in JAX: derived, run, broken and sped up."""

from ttt_teach.rules.delta import delta
from ttt_teach.rules.linear import linear
from ttt_teach.rules.mesa import MesaState, mesa
from ttt_teach.solvers import CG

__all__ = ["CG", "MesaState", "delta", "linear", "mesa"]
