"""Reading what ptxas says; compiling for a GPU wants a plugin of 140 MB, which the tests do without."""

import pytest

from ttt_teach.bench import registers

SAID = """ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'body_mosaic_gpu_kernel' for 'sm_90a'
ptxas info    : Function properties for body_mosaic_gpu_kernel
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 166 registers, used 2 barriers, 1 bytes smem
ptxas warning : Registers are spilled to local memory in function 'body', 268 bytes spill stores, 271 bytes spill loads
ptxas info    : Function properties for body_mosaic_gpu_kernel
    272 bytes stack frame, 268 bytes spill stores, 271 bytes spill loads
ptxas info    : Used 255 registers, used 2 barriers, 272 bytes cumulative stack size, 1 bytes smem
"""


def test_each_kernel_is_found_once_with_its_spills():
    assert list(registers.allotted(SAID)) == [(166, 0, 0), (255, 268, 271)]


def test_a_child_that_fails_says_why():
    with pytest.raises(RuntimeError, match="nothing, forward: KeyError: 'nothing'"):
        list(registers.lines("nothing"))


def test_what_is_asked_wrongly_or_missing_is_named(capsys, monkeypatch):
    for arguments, message in (
        (["fast"], "fast is no case; expected mesa, linear"),
        (["mesa"], "is not installed: pip"),
    ):
        monkeypatch.setattr(registers, "PLUGIN", "a_plugin_that_nobody_has")
        with pytest.raises(SystemExit):
            registers.main(arguments)
        assert message in capsys.readouterr().err
