"""JSON from outside."""

from __future__ import annotations

import pytest

from bnmc._support.json import loads


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, b"\xff\xfe\xff", '{"a":' * 50_000])
def test_what_is_no_json_is_a_value_error(text: str | bytes) -> None:
    with pytest.raises(ValueError, match=r"nested|Expecting|decode"):
        loads(text)


def test_a_document() -> None:
    assert loads(b'{"a": [1, null]}') == {"a": [1, None]}
