"""Tables as text."""

import pytest

from bnmc._support.text import loads, text_table, wrapped

ROWS = [["a", "1", "yes"], ["bcd", "22", ""]]
FITS = [["8", "0.801765", ""], ["32", "1.018941", "  unstable"]]


@pytest.mark.parametrize(
    ("heads", "rows", "options", "lines"),
    [
        ("n size x", ROWS, {}, ["n    size    x", "a       1  yes", "bcd    22"]),
        ("n size x", ROWS, {"align": "><"}, ["  n  size  x", "  a  1     yes", "bcd  22"]),
        ("n size x", ROWS, {"align": "<><"}, ["n    size  x", "a       1  yes", "bcd    22"]),
        (
            "batch rate .", FITS, {"align": ">><", "gap": "", "least_width": 10},
            ["     batch      rate.", "         8  0.801765", "        32  1.018941  unstable"],
        ),
        ("layer gap", [], {}, ["layer  gap"]),
        ("norm", [["batch"], ["none"]], {}, ["norm", "batch", "none"]),
    ],
)  # fmt: skip
def test_tables(heads, rows, options, lines):
    assert text_table(heads.split(), rows, **options).splitlines() == lines


def test_wrapped_texts_have_at_most_100_columns():
    text = "- " + " ".join(["a-hyphenated-word"] * 30)
    lines = wrapped(text, "  ").splitlines()
    assert " ".join(line.strip() for line in lines) == text
    assert [line[:2] for line in lines] == ["- ", *["  "] * (len(lines) - 1)]
    assert 82 < max(map(len, lines)) <= 100
    assert wrapped("x" * 200) == "x" * 200  # a name is whole


def test_a_row_of_another_length_raises():
    with pytest.raises(ValueError, match="zip"):
        text_table(["layer", "gap"], [["1"]])


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, b"\xff\xfe\xff", '{"a":' * 50_000])
def test_what_is_no_json_is_a_value_error(text: str | bytes) -> None:
    with pytest.raises(ValueError, match=r"nested|Expecting|decode"):
        loads(text)


def test_a_document() -> None:
    assert loads(b'{"a": [1, null]}') == {"a": [1, None]}
