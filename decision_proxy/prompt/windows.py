"""What a tokenizer made of one window of a text, and where."""

from __future__ import annotations

from array import array
from dataclasses import dataclass

from tokenizers import Encoding


@dataclass(frozen=True, slots=True)
class Window:
    """Ids of one window of a text, with the character span of each id, relative to the window."""

    ids: array[int]
    starts: array[int]
    ends: array[int]

    @classmethod
    def of(cls, encoding: Encoding) -> Window:
        offsets = encoding.offsets
        return cls(
            array("I", encoding.ids),
            array("I", [start for start, _ in offsets]),
            array("I", [end for _, end in offsets]),
        )

    def closes(self, index: int) -> bool:
        """Whether the id at `index` is the last of its span, and another id follows."""
        return index + 1 < len(self.ids) and self.starts[index + 1] >= self.ends[index]

    @property
    def bytes(self) -> int:
        return 12 * len(self.ids)
