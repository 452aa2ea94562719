"""The tensors that a kernel writes are read from Inductor's declaration."""

import pytest

from nimble_fx.errors import UnsupportedError
from nimble_fx.rewrites.inductor.declarations import Declaration, read_declarations

CPP = "cpp_fused_0 = async_compile.cpp_pybinding({}, 'void kernel()')\n"
TRITON = (
    "triton_poi_fused_0 = async_compile.triton('triton_poi_fused_0', {!r}, device_str='cuda')\n"
)


def test_pointers_to_constants_are_read_and_others_written() -> None:
    types = ["const float*", "float*", "const int64_t", "at::Half*"]
    declared = {"cpp_fused_0": Declaration("void kernel()", (False, True, None, True))}
    assert read_declarations(CPP.format(types)) == declared


def test_tritons_parameters_say_by_their_names_what_is_written() -> None:
    parameters = "in_ptr0, in_out_ptr0, out_ptr1, ws_ptr, ks0, xnumel, XBLOCK : tl.constexpr"
    source = f"import triton\n\n@triton.jit\ndef triton_poi_fused_0({parameters}):\n    pass\n"
    writes = (False, True, True, True, None, None)
    declared = {"triton_poi_fused_0": Declaration(source, writes)}
    assert read_declarations(TRITON.format(source)) == declared


@pytest.mark.parametrize(
    "text",
    [
        "multi_kernel_0 = async_compile.multi_kernel('multi_kernel_0', [a, b])",
        "cpp_fused_0 = async_compile.cpp(source)",
        TRITON.format("def one(in_ptr0): pass\ndef two(in_ptr0): pass"),
    ],
)
def test_other_kernels_are_refused(text: str) -> None:
    with pytest.raises(UnsupportedError, match="unknown here"):
        read_declarations(text)
