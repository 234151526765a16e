import json
import os
import subprocess
import sys

PROGRAM = """
import json
from ttt_teach.bench import split
sizes = {"B": 1, "T": 24, "H": 2, "D": 8}
print(json.dumps(list(split.report(sizes, form="recurrent", lact_sizes=(1, 2, 4, 2, 4)))))
"""


def test_two_devices_agree_with_one():
    """By heads, by sequence, LaCT by tokens; this Python has one device, so another one runs it."""
    quickly = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
    env = dict(os.environ, XLA_FLAGS=f"--xla_force_host_platform_device_count=2 {quickly}", JAX_PLATFORMS="cpu")
    ran = subprocess.run([sys.executable, "-c", PROGRAM], env=env, capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr[-2000:]
    said = json.loads(ran.stdout)
    assert len(said) == 9
    # bfloat16 outputs: an ulp here and there, which is 4e-3 of one number
    assert all(float(line[25:].split()[0]) < 5e-5 for line in said), said
