"""float32 products in float32, also on a GPU, which would round their factors to 11 bits if nobody asked."""

import jax

# A decorator. The door puts it around every form; a gradient rule of a form's own is traced later and needs it again.
full_precision = jax.default_matmul_precision("highest")
