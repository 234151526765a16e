"""Linear solvers, stated for a matrix that is only known through its products with vectors; and RLS, which carries an
inverse instead."""

from ttt_teach.solvers.cg import CG, PCG, CGTrace, cg, cg_trace, steps_to
from ttt_teach.solvers.rls import rls, rls_update

__all__ = ["CG", "PCG", "CGTrace", "cg", "cg_trace", "rls", "rls_update", "steps_to"]
