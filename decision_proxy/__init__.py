"""A reverse proxy that answers typed decisions in front of an unmodified vLLM."""

from importlib.metadata import version

__version__ = version("decision-proxy")
