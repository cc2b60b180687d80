import pytest
from hypothesis import settings

pytest_plugins = ("tests.servers",)

# A busy machine is slow, not wrong: timing is never a pass or fail.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"
