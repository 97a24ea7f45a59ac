from kubectl_rljob.printers.curves import SHOWN
from rljob_api.metrics import METRICS


def test_the_status_page_shows_only_metrics_of_the_table() -> None:
    assert {name for _, name, _ in SHOWN} <= METRICS.keys()
