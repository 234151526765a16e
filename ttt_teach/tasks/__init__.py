"""Inputs: small examples that can be checked by hand, and real queries, keys and values."""

from ttt_teach.tasks.arrays import QKV, SHIPPED, load_qkv, minilm_qkv, unit
from ttt_teach.tasks.correlated_keys import overlapping_keys, two_keys
from ttt_teach.tasks.parity import parity
from ttt_teach.tasks.recall import recall

__all__ = ["QKV", "SHIPPED", "load_qkv", "minilm_qkv", "overlapping_keys", "parity", "recall", "two_keys", "unit"]
