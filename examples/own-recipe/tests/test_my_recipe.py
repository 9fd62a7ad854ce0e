from my_recipe import extra

from provision import Settings
from provision.testing import MockHost, converge


def test_second_run_changes_nothing(mock_cos_host: MockHost) -> None:
    report = converge(mock_cos_host, extra(Settings()))
    assert not report.failed, str(report)
    assert converge(mock_cos_host, extra(Settings()), check=True).changed == ()


def test_labels_are_readable_through_the_link(mock_cos_host: MockHost) -> None:
    converge(mock_cos_host, extra(Settings()))
    assert mock_cos_host.path("/mnt/disks/data/labels.txt").read_text() == "cat\ndog\n"
