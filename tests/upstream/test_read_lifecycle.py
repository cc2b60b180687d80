"""Connections: kept, lost, bounded; and given up at once when nobody wants the answer."""

import asyncio

import pytest

from decision_proxy.errors import (
    ProxyError,
    UpstreamBroken,
    UpstreamOverloaded,
    UpstreamUnavailable,
)
from decision_proxy.settings import Reads
from decision_proxy.upstream.reads import ReadClient
from tests.fakes import faults
from tests.fakes.vllm import FakeVllm, Fault
from tests.upstream.asking import CONTEXT, read

pytestmark = pytest.mark.anyio

MANY = [read(token) for token in range(8)]


async def test_the_first_failure_is_the_only_one_and_its_siblings_are_aborted(
    vllm: FakeVllm, client: ReadClient
) -> None:
    others_wait = asyncio.Event()
    vllm.every_read = faults.hang()
    vllm.faults[5] = faults.held(others_wait, faults.status(503, "queue is full"))
    reading = asyncio.create_task(client.read(MANY, CONTEXT, takes_lists=False))
    await vllm.until(lambda: len(vllm.reads) == len(MANY))
    others_wait.set()
    with pytest.raises(UpstreamOverloaded):
        await reading
    await vllm.until(lambda: sum(seen.aborted for seen in vllm.reads) == len(MANY) - 1)
    assert len(vllm.reads) == len(MANY)


async def test_several_failures_are_still_one(vllm: FakeVllm, client: ReadClient) -> None:
    vllm.every_read = faults.status(500)
    with pytest.raises(UpstreamBroken):
        await client.read(MANY, CONTEXT, takes_lists=False)


@pytest.mark.parametrize("takes_lists", [True, False], ids=["list", "single"])
async def test_a_cancelled_decision_hangs_up_on_vllm(
    vllm: FakeVllm, client: ReadClient, takes_lists: bool
) -> None:
    vllm.every_read = faults.hang()
    expected = 1 if takes_lists else len(MANY)
    reading = asyncio.create_task(client.read(MANY, CONTEXT, takes_lists=takes_lists))
    await vllm.until(lambda: len(vllm.reads) == expected)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    await vllm.until(lambda: all(seen.aborted for seen in vllm.reads))


@pytest.mark.parametrize("steps", range(1, 8))
async def test_a_decision_cancelled_while_it_connects_gives_its_connection_back(
    vllm: FakeVllm, steps: int
) -> None:
    vllm.faults = {1: faults.hang(), 2: faults.hang()}
    async with ReadClient(vllm.url, Reads(connections=1)) as client:
        readings = [
            asyncio.create_task(client.read([read(1)], CONTEXT, takes_lists=True)) for _ in range(2)
        ]
        for _ in range(steps):
            await asyncio.sleep(0)  # one step of the event loop further into connecting
        for reading in readings:
            reading.cancel()
        await asyncio.wait(readings)
        assert all(reading.cancelled() for reading in readings)
        vllm.faults = {}
        assert await client.read([read(1)], CONTEXT, takes_lists=True)


async def test_a_failed_decision_leaves_all_connections_free(vllm: FakeVllm) -> None:
    async with ReadClient(vllm.url, Reads(connections=2)) as client:
        vllm.every_read = faults.close_connection()
        for _ in range(3):
            with pytest.raises(ProxyError):
                await client.read(MANY, CONTEXT, takes_lists=False)
        vllm.every_read = None
        assert len(await client.read(MANY, CONTEXT, takes_lists=False)) == len(MANY)


async def test_no_more_connections_are_open_than_allowed(vllm: FakeVllm) -> None:
    release = asyncio.Event()
    vllm.every_read = faults.held(release)
    async with ReadClient(vllm.url, Reads(connections=3)) as client:
        reading = asyncio.create_task(client.read(MANY, CONTEXT, takes_lists=False))
        await vllm.until(lambda: len(vllm.reads) == 3)
        release.set()
        assert len(await reading) == len(MANY)
    assert len({seen.connection for seen in vllm.reads}) == 3


async def test_a_kept_connection_that_the_server_closes_at_the_wrong_moment_is_tried_again(
    vllm: FakeVllm, client: ReadClient
) -> None:
    vllm.every_read = faults.close_reused_connection()
    await client.read([read(1)], CONTEXT, takes_lists=True)
    assert await client.read([read(2)], CONTEXT, takes_lists=True)
    assert [seen.reused_connection for seen in vllm.reads] == [False, True, False]
    assert len({seen.body["request_id"] for seen in vllm.reads}) == 3


async def test_it_is_tried_again_once_only(vllm: FakeVllm, client: ReadClient) -> None:
    await client.read([read(1)], CONTEXT, takes_lists=True)
    vllm.every_read = faults.close_connection()
    with pytest.raises(UpstreamUnavailable):
        await client.read([read(2)], CONTEXT, takes_lists=True)
    assert len(vllm.reads) == 3


@pytest.mark.parametrize(
    "fault",
    [faults.die_in_headers(), faults.die_in_body(), faults.status(503), faults.status(500)],
    ids=["headers", "body", "503", "500"],
)
async def test_a_kept_connection_that_started_to_answer_is_not_tried_again(
    vllm: FakeVllm, client: ReadClient, fault: Fault
) -> None:
    await client.read([read(1)], CONTEXT, takes_lists=True)
    vllm.every_read = fault
    with pytest.raises(ProxyError):
        await client.read([read(2)], CONTEXT, takes_lists=True)
    assert [seen.reused_connection for seen in vllm.reads] == [False, True]


async def test_idle_connections_that_the_server_closed_are_replaced(
    vllm: FakeVllm, client: ReadClient
) -> None:
    await client.read(MANY, CONTEXT, takes_lists=False)
    vllm.drop_idle_connections()
    assert await client.read(MANY, CONTEXT, takes_lists=False)


async def test_connections_are_not_kept_longer_than_the_setting_says(vllm: FakeVllm) -> None:
    async with ReadClient(vllm.url, Reads(keepalive_s=0)) as client:
        for _ in range(2):
            await client.read([read(1)], CONTEXT, takes_lists=True)
    assert [seen.reused_connection for seen in vllm.reads] == [False, False]


async def test_a_client_that_is_not_open_says_so(vllm: FakeVllm) -> None:
    with pytest.raises(RuntimeError, match="not open"):
        await ReadClient(vllm.url, Reads()).read([read(1)], CONTEXT, takes_lists=True)
