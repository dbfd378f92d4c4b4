"""Fig. 5 on digits, with a fixed seed."""

import pytest

pytest.importorskip("torch")

from bnmc.experiments.pictures import curve


class TestFig5:
    @pytest.fixture
    def figure(self, small):
        return small("rank-collapse-5")

    def test_positive_weights_lower_rank_bound_and_accuracy(self, figure):
        bound, accuracy = curve(figure.data, "rank_bound")[:, 0], curve(figure.data, "accuracy")
        for usual, positive in ((0, 2), (3, 5)):
            assert bound[positive, 2] < bound[usual, 1]
            assert accuracy[positive, -1, 2] < accuracy[usual, -1, 1]

    def test_findings(self, figure):
        assert figure.findings[0].startswith("Perceptron: positive weights change the rank")
        assert figure.findings[2].startswith("Convolutions: ")
