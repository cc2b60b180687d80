"""Reads as tests write them."""

from decision_proxy.upstream.reads import Prompt, Read, ReadContext
from tests.fakes.completions import Ids, logprob, made_up_probability

CONTEXT = ReadContext("tiny", "decision-1")
SHARED: Ids = (151644, 872, 198)


def read(*tail: int, labels: Ids = (32, 33), shared: Ids = SHARED) -> Read:
    return Read(Prompt(",".join(map(str, shared)).encode(), len(shared), tail), labels)


def logprobs(prompt: Ids, labels: Ids) -> tuple[float, ...]:
    """What the fake server finds when nothing is scripted."""
    return tuple(logprob(made_up_probability(prompt, label)) for label in labels)
