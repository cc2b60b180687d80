"""Where exceptions that nobody foresaw end: the only `except Exception` around our own work."""

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
