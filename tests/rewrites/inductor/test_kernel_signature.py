"""A kernel gets its arguments, in order, from the arguments of its operator."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from nimble_fx.rewrites.inductor.kernel_signature import (
    Argument,
    NewTensor,
    Signature,
    Taken,
    ViewLayout,
)
from nimble_fx.rewrites.kernel_registry import MAX_PARAMETERS

OFTEN_TOO_MANY = st.lists(st.booleans(), min_size=1, max_size=2 * MAX_PARAMETERS)


@given(OFTEN_TOO_MANY)
def test_a_call_says_which_tensor_the_kernel_takes_where(written: list[bool]) -> None:
    signature = Signature(tuple(Taken((), (), torch.float32, each) for each in written), (), ())
    tensors = list(map(str, range(len(written))))
    arguments = signature.operator_arguments(tensors)
    assert signature.in_order(arguments) == tensors
    assert len(arguments) == signature.n_parameters


@given(OFTEN_TOO_MANY)
def test_only_what_is_read_is_in_a_list_and_only_if_there_are_too_many(
    written: list[bool],
) -> None:
    signature = Signature(tuple(Taken((), (), torch.float32, each) for each in written), (), ())
    positions = list(range(len(written)))
    if len(written) <= MAX_PARAMETERS:
        assert signature.operator_arguments(positions) == positions
    else:
        read, *others = signature.operator_arguments(positions)
        assert read == [i for i in positions if not written[i]]
        assert others == [i for i in positions if written[i]]


@given(OFTEN_TOO_MANY)
def test_symbols_are_parameters_of_their_own(written: list[bool]) -> None:
    taken = [Taken((f"s{i % 3}",), (1,), torch.float32, each) for i, each in enumerate(written)]
    signature = Signature(tuple(taken), (), ())
    assert signature.symbols == [f"s{i}" for i in range(min(3, len(written)))]
    arguments = signature.operator_arguments(range(len(written)))
    assert signature.in_order(arguments) == list(range(len(written)))
    assert signature.n_parameters == len(arguments) + len(signature.symbols)
    assert isinstance(arguments[0], list) == (
        len(written) + len(signature.symbols) > MAX_PARAMETERS
    )
    for symbol in signature.symbols:
        assert f"SymInt {symbol}" in signature.schema


def test_a_signature_at_some_sizes_has_numbers_everywhere() -> None:
    def signature(s0: int | str, twice: int | str) -> Signature:
        return Signature(
            (Taken((s0, 4), (4, 1), torch.float32, is_written=True),),
            (NewTensor((twice,), (1,), torch.float32, "cpu"),),
            (Argument(False, 0), Argument(True, 0, ViewLayout((s0,), (twice,), s0)), twice, 7),
        )

    assert signature("s0", "2 * s0").at([5]) == signature(5, 10)
    assert signature(5, 10).symbols == []
    assert signature(5, 10).at([]) == signature(5, 10)
