"""``bnmc demo``: its figures and its picture."""

from pathlib import Path


def test_it_is_two_figures_and_a_picture(printed):
    out = printed("demo --depth 20 --chains 10 --seed 3")
    assert "\x1b" not in out
    assert Path("bnmc-demo.png").read_bytes().startswith(b"\x89PNG")
    sizes = "--set depth=20 --set networks=10 --set vanilla=50"
    for figure in ("digits", f"bridging-1a {sizes}"):
        shown = printed(f"figure {figure} --seed 3").partition("\nseed 3")[0]
        assert shown.rstrip("\n") in out


def test_it_replaces_its_last_picture(printed):
    Path("picture.png").write_text("of the last time")
    printed("demo --depth 3 --chains 4 --plot picture.png")
    assert Path("picture.png").read_bytes().startswith(b"\x89PNG")
