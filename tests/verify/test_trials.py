"""Any random program has eager's results bit for bit; any broken schedule has wrong ones."""

from hypothesis import given, settings

from tests.strategies import dags
from tests.support.sums import broken_sums
from tests.support.trials import Trial, trials


@settings(max_examples=60)  # because many programs need one stream only
@given(trials())
def test_a_program_gives_eagers_results_on_the_cpu_and_in_any_order_on_the_virtual_device(
    trial: Trial,
) -> None:
    trial.check(n_orders=10)


@given(dags(max_vertices=7))
def test_a_lost_wait_or_an_early_free_in_any_dag_of_sums_shows_as_a_wrong_result(
    rows: list[int],
) -> None:
    for mutant, wrong in broken_sums(rows, limit=3, n_orders=1200):
        assert wrong is not None, mutant.description
