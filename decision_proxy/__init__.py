"""A reverse proxy that answers typed decisions in front of an unmodified vLLM."""

__version__ = "0.1.0"
