"""Tables as text."""

import pytest

from bnmc._support.text import loads, text_table


def test_alignments_of_the_columns():
    rows = [["a", "1", "yes"], ["bcd", "22", ""]]
    assert text_table(["n", "size", "x"], rows) == "n    size    x\na       1  yes\nbcd    22"
    assert text_table(["n", "size", "x"], rows, align="><") == (
        "  n  size  x\n  a  1     yes\nbcd  22"
    )
    assert text_table(["n", "size", "x"], rows, align="<><") == (
        "n    size  x\na       1  yes\nbcd    22"
    )


def test_columns_of_a_fixed_width():
    rows = [["8", "0.801765", ""], ["32", "1.018941", "  unstable"]]
    found = text_table(["batch", "rate", ""], rows, align=">><", gap="", least_width=10)
    assert found.splitlines() == [
        f"{'batch':>10}{'rate':>10}",
        f"{8:10d}{0.801765:10.6f}",
        f"{32:10d}{1.018941:10.6f}  unstable",
    ]


def test_heads_without_rows():
    assert text_table(["layer", "gap"], []) == "layer  gap"


def test_a_row_of_another_length_raises():
    with pytest.raises(ValueError, match="zip"):
        text_table(["layer", "gap"], [["1"]])


def test_a_table_of_one_column():
    assert text_table(["norm"], [["batch"], ["none"]]) == "norm\nbatch\nnone"


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, b"\xff\xfe\xff", '{"a":' * 50_000])
def test_what_is_no_json_is_a_value_error(text: str | bytes) -> None:
    with pytest.raises(ValueError, match=r"nested|Expecting|decode"):
        loads(text)


def test_a_document() -> None:
    assert loads(b'{"a": [1, null]}') == {"a": [1, None]}
