"""What an operator of a kernel is called with is what the kernel takes, in its order."""

from hypothesis import given
from hypothesis import strategies as st

from nimble_fx.rewrites.inductor.kernel_signature import MAX_PARAMETERS, Signature, Taken

OFTEN_TOO_MANY = st.lists(st.booleans(), min_size=1, max_size=2 * MAX_PARAMETERS)


@given(OFTEN_TOO_MANY)
def test_a_call_says_which_tensor_the_kernel_takes_where(written: list[bool]) -> None:
    signature = Signature(tuple(Taken((), (), each) for each in written), (), ())
    tensors = list(map(str, range(len(written))))
    arguments = signature.operator_arguments(tensors)
    assert signature.in_order(arguments) == tensors
    assert len(arguments) == signature.n_parameters


@given(OFTEN_TOO_MANY)
def test_only_what_is_read_is_in_a_list_and_only_if_there_are_too_many(
    written: list[bool],
) -> None:
    signature = Signature(tuple(Taken((), (), each) for each in written), (), ())
    positions = list(range(len(written)))
    if len(written) <= MAX_PARAMETERS:
        assert signature.operator_arguments(positions) == positions
    else:
        read, *others = signature.operator_arguments(positions)
        assert read == [i for i in positions if not written[i]]
        assert others == [i for i in positions if written[i]]
