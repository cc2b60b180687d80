"""How much a tokenizer was given to read."""

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

from decision_proxy.prompt.tokenizer import Tokenizer


class Counted:
    chars = 0


@contextmanager
def counted(tokenizer: Tokenizer) -> Iterator[Counted]:
    seen = Counted()
    many, spans, one = tokenizer.encode_many, tokenizer.encode_with_spans, tokenizer.encode

    def counting(encode):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
        def wrapped(texts):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
            seen.chars += sum(map(len, [texts] if isinstance(texts, str) else texts))
            return encode(texts)

        return wrapped

    with (
        patch.object(tokenizer, "encode_many", counting(many)),
        patch.object(tokenizer, "encode_with_spans", counting(spans)),
        patch.object(tokenizer, "encode", counting(one)),
    ):
        yield seen
