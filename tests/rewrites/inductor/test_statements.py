"""Inductor's module is read completely, or refused: no statement is skipped."""

import pytest
import torch

from nimble_fx.errors import UnsupportedError
from nimble_fx.rewrites.inductor.kernel_signature import NewTensor, ViewLayout
from nimble_fx.rewrites.inductor.statements import (
    Assignment,
    Expectation,
    Expression,
    Geometry,
    Item,
    KernelCall,
    Name,
    OperatorCall,
    View,
    read_calls,
)

MODULE = '''
cpp_fused_relu_0 = async_compile.cpp_pybinding(['const float*', 'float*'], r"""
void kernel()
""")

class Runner:
    def call(self, args):
        arg0_1, arg1_1 = args
        args.clear()
{}
        return (buf1, None, 3)
'''


def statements(*lines: str) -> list[Assignment]:
    text = MODULE.format("\n".join(f"        {line}" for line in lines))
    return list(read_calls(text).statements)


def test_inputs_and_results_are_read() -> None:
    calls = read_calls(MODULE.format("        buf1 = arg0_1"))
    assert calls.inputs == ("arg0_1", "arg1_1")
    assert calls.returned == (Name("buf1"), None, 3)


@pytest.mark.parametrize(
    ("line", "name", "value"),
    [
        (
            "buf0 = empty_strided_cpu((2, 3), (3, 1), torch.float32)",
            "buf0",
            NewTensor((2, 3), (3, 1), torch.float32, "cpu"),
        ),
        (
            "buf1 = reinterpret_tensor(buf0, (6, ), (1, ), 2)  # alias",
            "buf1",
            View(Name("buf0"), ViewLayout((6,), (1,), 2)),
        ),
        ("arg0_1 = copy_if_misaligned(arg0_1)", "arg0_1", Name("arg0_1")),
        (
            "triton_poi_fused_0.run(arg0_1, buf1, 12, stream=raw_stream0)",
            None,
            KernelCall("triton_poi_fused_0", (Name("arg0_1"), Name("buf1"), 12)),
        ),
        (
            "buf0 = empty_strided_cuda((), (), torch.int64)",
            "buf0",
            NewTensor((), (), torch.int64, "cuda"),
        ),
        (
            "aten.index_put_(buf0, [arg0_1], buf1, True)",
            None,
            OperatorCall(
                ("aten", "index_put_", None),
                (Name("buf0"), (Name("arg0_1"),), Name("buf1"), True),
                {},
            ),
        ),
        (
            "aten.scatter_reduce_.two(buf0, 0, arg0_1, buf1, reduce='sum')",
            None,
            OperatorCall(
                ("aten", "scatter_reduce_", "two"),
                (Name("buf0"), 0, Name("arg0_1"), Name("buf1")),
                {"reduce": "sum"},
            ),
        ),
        (
            "assert_size_stride(arg0_1, (2, ), (1, ), 'input')",
            None,
            Expectation(Name("arg0_1"), (2,), (1,)),
        ),
        (
            "assert_tensor_metadata(buf0, (2, ), (1, ), torch.float32, 'aten.rand')",
            None,
            Expectation(Name("buf0"), (2,), (1,), torch.float32),
        ),
        ("buf2 = buf1[0]", "buf2", Item(Name("buf1"), 0)),
        ("buf2 = buf1[2][1]", "buf2", Item(Item(Name("buf1"), 2), 1)),
        ("buf2 = buf1; del buf1  # reuse", "buf2", Name("buf1")),
        (
            "cpp_fused_relu_0(arg0_1, buf1)",
            None,
            KernelCall("cpp_fused_relu_0", (Name("arg0_1"), Name("buf1"))),
        ),
        (
            "extern_kernels.mm(arg0_1, reinterpret_tensor(arg1_1, (3, 2), (1, 3), 0), out=buf0)",
            None,
            OperatorCall(
                ("aten", "mm", None),
                (Name("arg0_1"), View(Name("arg1_1"), ViewLayout((3, 2), (1, 3), 0))),
                {"out": Name("buf0")},
            ),
        ),
        (
            "buf3 = torch.ops.aten.full.default([2, -1], float('inf'), device=device(type='cpu'))",
            "buf3",
            OperatorCall(
                ("aten", "full", "default"),
                ((2, -1), float("inf")),
                {"device": torch.device("cpu")},
            ),
        ),
    ],
)
def test_a_statement_is_read(line: str, name: str | None, value: object) -> None:
    assert statements(line) == [Assignment(name, value, None)]


@pytest.mark.parametrize(
    "number", [1 + 2j, -1 - 2j, 2j, -0.5j, complex(3, -1e-12), complex(0, -3), 1e300 * 1j]
)
def test_complex_numbers_are_read_as_python_does(number: complex) -> None:
    (call,) = statements(f"torch.ops.aten.mul.Scalar(arg0_1, {number!r})")
    assert repr(call.value.args) == repr((Name("arg0_1"), eval(repr(number))))


@pytest.mark.parametrize(
    ("line", "name", "value"),
    [
        ("s77 = arg0_1", "s77", Name("arg0_1")),
        ("arg1_1_size = arg1_1.size()", "arg1_1_size", Geometry(Name("arg1_1"), "size")),
        ("arg1_1_stride = arg1_1.stride()", "arg1_1_stride", Geometry(Name("arg1_1"), "stride")),
        ("s6 = arg1_1_size[0]", "s6", Item(Name("arg1_1_size"), 0)),
        ("triton_poi_0_xnumel = 64*s77", "triton_poi_0_xnumel", Expression("64 * s77")),
        (
            "buf0 = empty_strided_cpu((s17 + s77, (-1) + s77), (s77, 1), torch.float32)",
            "buf0",
            NewTensor(("s17 + s77", "-1 + s77"), ("s77", 1), torch.float32, "cpu"),
        ),
        (
            "buf1 = reinterpret_tensor(buf0, (s77 // 2, 64), (64, 1), 64*s77)  # alias",
            "buf1",
            View(Name("buf0"), ViewLayout(("s77 // 2", 64), (64, 1), "64 * s77")),
        ),
        (
            "assert_size_stride(arg0_1, (s77, ), (max(1, s17), ), 'input')",
            None,
            Expectation(Name("arg0_1"), ("s77",), ("max(1, s17)",)),
        ),
        (
            "cpp_fused_relu_0(arg0_1, buf0, s77, 2*s17)",
            None,
            KernelCall(
                "cpp_fused_relu_0",
                (Name("arg0_1"), Name("buf0"), Name("s77"), Expression("2 * s17")),
            ),
        ),
    ],
)
def test_symbolic_sizes_are_read(line: str, name: str | None, value: object) -> None:
    assert statements(line) == [Assignment(name, value, None)]


def test_expectations_of_several_tensors_are_read_one_by_one() -> None:
    line = "assert_size_stride_grouped((arg0_1, arg1_1), ((2, ), (3, 2)), ((1, ), (1, 3)), 'input')"
    assert statements(line) == [
        Assignment(None, Expectation(Name("arg0_1"), (2,), (1,)), None),
        Assignment(None, Expectation(Name("arg1_1"), (3, 2), (1, 3)), None),
    ]


@pytest.mark.parametrize(
    "line",
    [
        "del arg0_1",
        "raw_stream0 = get_raw_stream(0)",
        "pass",
    ],
)
def test_what_computes_nothing_is_left_out(line: str) -> None:
    assert statements(line) == []


@pytest.mark.parametrize(
    "line",
    [
        "s0 = arg0_1 / 2",
        "s0 = 2 * arg0_1.n",
        "buf0 = empty_strided_cpu(('s0',), (1, ), torch.float32)",
        "buf0.copy_(buf1)",
        "buf0 = made_by_a_newer_inductor(buf1)",
        "buf0[0] = buf1",
        "buf0, buf1 = arg0_1",
        "for i in range(2): cpp_fused_relu_0(arg0_1, buf1)",
        "if arg0_1: pass",
        "buf0 = torch.empty",
        "with torch.no_grad(): pass",
        "buf0 = (lambda: 1)()",
        "torch.ops.aten.mul.Scalar(arg0_1, nan + 1j)",
    ],
)
def test_what_is_not_known_is_refused(line: str) -> None:
    with pytest.raises(UnsupportedError, match="Inductor wrote what is not known here"):
        statements(line)


def test_the_block_of_a_device_is_read() -> None:
    lines = (
        "with torch.cuda._DeviceGuard(0):",
        "    torch.cuda.set_device(0)",
        "    buf1 = arg0_1",
    )
    assert statements(*lines) == [Assignment("buf1", Name("arg0_1"), None)]


def test_a_module_of_several_parts_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="several parts"):
        read_calls(MODULE.format("") + MODULE.format(""))


def test_a_call_has_the_origin_in_the_comment_above_it_alone() -> None:
    found = statements(
        "# [Provenance debug handles] cpp_fused_relu_0:1",
        "cpp_fused_relu_0(arg0_1, buf1)",
        "cpp_fused_relu_0(arg0_1, buf2)",
    )
    assert [each.origin for each in found] == ["cpp_fused_relu_0:1", None]
