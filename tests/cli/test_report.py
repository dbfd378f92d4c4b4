"""Parts of reports: the layers of a table, and numbers with errors."""

from __future__ import annotations

import numpy as np
import pytest

from bnmc.cli import report


def test_shown_layers() -> None:
    def shown(layers: np.ndarray) -> list[int]:
        return [int(layers[row]) for row in report.shown_rows(layers)]

    assert shown(np.arange(1)) == [0]
    assert shown(np.arange(101)) == [0, 1, 2, 5, 10, 20, 50, 100]
    assert shown(np.arange(1, 1001))[-2:] == [500, 1000]
    assert shown(np.arange(0, 50, 7)) == [0, 7, 21, 49]
    for last in (9, 137, 2000, 9999, 1_000_000):
        layers = np.arange(last + 1)
        assert len(report.shown_rows(layers)) <= report.SHOWN_LAYERS
        assert shown(layers)[0] == 0
        assert shown(layers)[-1] == last


@pytest.mark.parametrize(
    ("mean", "stderr", "text"),
    [
        (0.123456, 0.00123, "0.1235 ± 0.0012"),
        (12.3456, 0.456, "12.35 ± 0.46"),
        (1e-17, 2e-18, "1e-17 ± 2e-18"),
        (123456.0, 1200.0, "1.23e+05 ± 1e+03"),
        (0.25, None, "0.25"),
        (0.25, 0.0, "0.25"),
        (0.25, np.nan, "0.25"),
    ],
)
def test_number(mean: float, stderr: float | None, text: str) -> None:
    assert report.number_with_error(mean, stderr) == text
