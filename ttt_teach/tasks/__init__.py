"""Inputs: small examples that can be checked by hand, and real queries, keys and values."""

from ttt_teach.tasks.arrays import QKV, load_qkv, minilm_qkv, unit
from ttt_teach.tasks.correlated_keys import two_keys

__all__ = ["QKV", "load_qkv", "minilm_qkv", "two_keys", "unit"]
