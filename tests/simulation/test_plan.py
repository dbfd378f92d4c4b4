"""What a plan says about its chains."""

from bnmc.simulation.plan import _list


def test_ten_chains_are_named_and_more_are_counted():
    ten = "0, 1, 2, 3, 4, 5, 6, 7, 8, 9"
    assert _list((3,)) == "3"
    assert _list(tuple(range(10))) == ten
    assert _list(tuple(range(11))) == f"{ten} and 1 more"
