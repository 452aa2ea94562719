"""The cost of the proofs is a part of the first call."""

from bench.measuring.proving import cost, share


def test_both_proofs_are_a_part_of_what_nimble_takes_of_the_first_call() -> None:
    found = share("two_tower", 2, "cpu")
    assert min(found.verify_seconds, found.verify_source_seconds) > 0
    assert found.verify_seconds + found.verify_source_seconds < found.nimble_seconds
    assert found.nimble_seconds < found.whole_seconds
    assert found.of_whole < found.of_nimble < 1


def test_a_schedule_of_about_so_many_tasks_is_proved() -> None:
    found = cost(200, rounds=2)
    assert 150 < found.n_tasks < 250
    assert found.n_streams == 16
    assert found.verify_seconds.n_samples == found.verify_source_seconds.n_samples == 2
