import pytest
from hypothesis import given
from hypothesis import strategies as st

from decision_proxy.wire.responses import MAX_ID_CHARS, json_response, request_id

NASTY = st.text(st.characters() | st.sampled_from(" \t\r\n\0\x7f\x85\xa0\xad\u2028\ud800"))


@given(NASTY | st.none())
def test_any_id_becomes_one_that_a_header_can_hold(given: str | None) -> None:
    id_ = request_id(given)

    assert 0 < len(id_) <= MAX_ID_CHARS
    assert id_ == id_.strip()
    assert id_.isprintable()
    assert request_id(id_) == id_
    sent = dict(json_response(b"{}", id_).raw_headers)
    assert sent[b"x-request-id"] == sent[b"x-typesafe-request-id"] == id_.encode("latin-1")


@pytest.mark.parametrize("id_", ["mine", "a b", "é", "x" * MAX_ID_CHARS, "{}/:;=,\"'"])
def test_an_id_that_a_header_can_hold_is_kept(id_: str) -> None:
    assert request_id(id_) == id_


@pytest.mark.parametrize("blank", [None, "", " ", "\t", "\r\n", " " * 1000])
def test_a_blank_id_makes_way_for_a_new_one(blank: str | None) -> None:
    assert len({request_id(blank), request_id(blank), ""}) == 3
