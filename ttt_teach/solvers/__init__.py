"""Linear solvers, stated for a matrix that is only known through its products with vectors."""

from ttt_teach.solvers.cg import CG, PCG, CGTrace, cg, cg_trace, steps_to

__all__ = ["CG", "PCG", "CGTrace", "cg", "cg_trace", "steps_to"]
