"""Linear solvers, stated for a matrix that is only known through its products with vectors."""

from ttt_teach.solvers.cg import CG, CGTrace, cg, cg_trace, steps_to

__all__ = ["CG", "CGTrace", "cg", "cg_trace", "steps_to"]
