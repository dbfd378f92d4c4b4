"""The assumptions of a bound, in sentences with their numbers."""

import numpy as np
import pytest

from bnmc.mixing.absorption import AbsorbingEvent
from bnmc.mixing.assumptions import absorption_probability, assumptions
from bnmc.mixing.coupling import CrossedStart

BOUND = AbsorbingEvent("dead sample", "It is dead.", 1e-6, 0.0, True)
MEAN = AbsorbingEvent("coinciding samples", "They coincide.", 2e-6, 1e-6, False)


def said(tail_probability=None, crossed_starts=(), absorbing_events=()):
    waited = np.array([10] * 496 + [40, 41, 50, 55])
    return assumptions(waited, 40, tail_probability, crossed_starts, absorbing_events)


def test_rare_events_are_invisible_unless_the_caller_excludes_them():
    sentence, others = said()
    assert "below about 1/500 in 40 layers" in sentence
    assert sentence.endswith("Of 500 pairs, 3 waited longer than 40 layers (at most 55).")
    assert others == "Other starts: not coupled, or without meeting."
    assert said(0.0)[0].startswith(
        "Stated by the caller: no pair waits longer than 40 layers. Of 5"
    )
    sentence, _ = said(1e-5)
    assert "longer than 40 layers with probability at most 1e-05. Each lag" in sentence


def test_other_starts_are_named():
    crossed = [CrossedStart("a line", np.arange(32)), CrossedStart("a block", np.arange(30), 2)]
    sentence = said(crossed_starts=crossed)[1]
    assert "from a line (32 pairs within 31 layers); a block (30 pairs within 29" in sentence
    assert "29 layers, 2 absorbed)." in sentence


def test_absorbing_events_come_with_their_probability():
    sentence = said(absorbing_events=[BOUND, MEAN])[2]
    assert "It is dead. Probability per layer: 1e-06." in sentence
    assert "They coincide. Probability per layer: 2e-06 ± 1e-06." in sentence
    # 10⁴ (1e-6 + 2e-6 + 3e-6).
    assert "Within 10000 layers this happens with probability about 0.06" in sentence
    assert "with probability at most 0.01" in said(absorbing_events=[BOUND])[2]


def test_the_probability_of_absorption_adds_up_to_at_most_one():
    assert absorption_probability([], 10**9) == 0.0
    assert absorption_probability([BOUND], 1000) == pytest.approx(1e-3)
    assert absorption_probability([BOUND, MEAN], 1000) == pytest.approx(6e-3)
    assert absorption_probability([BOUND], 10**7) == 1.0
    unknown = AbsorbingEvent("rank", "It is lost.", 0.1, np.inf, False)
    assert absorption_probability([unknown], 0) == 0.0
    assert absorption_probability([unknown], 1) == 1.0
