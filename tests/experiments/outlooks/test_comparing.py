"""The table of outlooks: counts by plain loops, and the order of training and measurement."""

import numpy as np
import pytest
from scipy import stats
from torch_models import torch  # noqa: F401

from bnmc.experiments.outlooks import outcomes
from bnmc.experiments.outlooks.collection import COLLECTION
from bnmc.experiments.outlooks.held_out import HELD_OUT
from bnmc.experiments.outlooks.outcomes import Outcome
from bnmc.experiments.registry import function_of


@pytest.fixture(scope="module")
def invented():
    """Return the figure of outcomes and outlooks that are drawn, these by name, and the calls."""
    rng, calls, said, gave = np.random.default_rng(0), [], {}, {}
    names = {id(entry): name for name, entry in (COLLECTION | HELD_OUT).items()}

    def outcome_of(entry, optimizer, rates, steps, seed):
        calls.append(("train", names[id(entry)], seed))
        answer = str(rng.choice(["trains", "late", "no"]))
        gave[names[id(entry)], optimizer] = answer
        return Outcome(answer, {"trains": 1.0, "late": steps + 1.0, "no": np.inf}[answer])

    def outlooks_of(entry, seed):
        calls.append(("measure", names[id(entry)], seed))
        answers = rng.choice(["trains", "undecided", "late", "no"], 3).tolist()
        said[names[id(entry)]] = dict(zip(("SGD", "Adam", "Adam, tried"), answers, strict=True))
        said[names[id(entry)]] |= {"SGD, by hand": entry.sgd, "Adam, by hand": entry.adam}
        return tuple(answers)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(outcomes, "outcome_of", outcome_of)
        patch.setattr(outcomes, "outlooks_of", outlooks_of)
        return function_of("outlook-table")(), said, gave, calls


def test_all_models_are_trained_before_the_first_is_measured(invented):
    *_, calls = invented
    count = len(COLLECTION) + len(HELD_OUT)
    assert [what for what, *_ in calls] == ["train"] * 2 * count + ["measure"] * count
    seeds = dict(call[1:] for call in calls)
    assert all(seeds[name] == seed for _, name, seed in calls)
    assert len({*seeds.values()}) == count


def test_counts(invented):
    figure, said, gave, _ = invented
    rows = {row[:2]: row[2:] for row in figure.table.rows}
    assert len(rows) == 8
    for (models, outlook), cells in rows.items():
        entries = {"collection": COLLECTION, "held out": HELD_OUT}[models]
        pairs = [(gave[name, outlook.split(",")[0]], said[name][outlook]) for name in entries]
        answers = {fail: [b for a, b in pairs if (a != "trains") == fail] for fail in (True, False)}
        fail, hits, no, train, alarms, false_no, undecided = cells
        for group, count, share, ends in (
            (answers[True], fail, hits, no), (answers[False], train, alarms, false_no),
        ):  # fmt: skip
            alarm = group.count("late") + group.count("no")
            assert (count, ends) == (len(group), group.count("no"))
            exact = stats.binomtest(alarm, len(group)).proportion_ci(0.95, "exact")
            assert np.allclose(
                [share.value, *share.ci], [alarm / len(group), exact.low, exact.high]
            )
        assert undecided == sum(answer == "undecided" for _, answer in pairs)
        finding = next(text for text in figure.findings if text.startswith(f"{models}, {outlook}:"))
        if outlook == "Adam, tried":
            assert f"no for {no:.0f} of {fail:.0f} failures, and for {false_no:.0f}" in finding
            continue
        assert f"{hits.value * fail:.0f} of {fail:.0f} failures are found" in finding
        missed = [
            name for name in entries
            if gave[name, outlook.split(",")[0]] != "trains" and said[name][outlook] == "trains"
        ]  # fmt: skip
        listed = f" ({'; '.join(missed)})" if missed else ""
        assert f" {len(missed)}{listed} missed; " in finding
        assert f" raise a false alarm; {undecided:.0f}" in finding


def test_at_least_twenty_models_are_held_out(invented):
    assert len(HELD_OUT) >= 20
    assert not set(HELD_OUT) & set(COLLECTION)
    assert int(invented[0].data["held_out"].sum()) == len(HELD_OUT)
