"""Where exceptions that nobody foresaw end: the only `except Exception` around our own work.

Two more stand around the work of others, which may raise anything: rendering a chat template
(`prompt.template`) and loading a tokenizer's files (`prompt.tokenizer`).
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from decision_proxy.errors import ClientGone, InternalError, ProxyError

log = logging.getLogger(__name__)


@contextmanager
def as_internal_error(what: str) -> Iterator[None]:
    """Anything but our own errors becomes an InternalError, and its traceback one log entry."""
    try:
        yield
    except (ProxyError, ClientGone):
        raise
    except Exception as surprise:
        log.exception("%s failed", what)
        raise InternalError("The proxy failed at this; its log says why.") from surprise
