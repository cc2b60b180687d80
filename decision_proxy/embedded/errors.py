class SetupError(Exception):
    """One sentence or two for a person: what is wrong, and what to do about it."""
