"""Bells: a ring is remembered until it is cleared, and heard only by those whom it concerns."""

from __future__ import annotations

import asyncio

from nightmail.bell import Bells
from tests.unit.support import soon


async def test_a_ring_wakes_who_waits() -> None:
    tower = Bells()
    with tower.bell("mail") as bell:
        waiting = asyncio.create_task(bell.wait(None))
        await asyncio.sleep(0)
        tower.ring("mail")

        assert await soon(waiting) is True


async def test_a_ring_before_the_wait_is_remembered() -> None:
    tower = Bells()
    with tower.bell("mail") as bell:
        tower.ring("mail")

        assert await soon(bell.wait(None)) is True
        assert await soon(bell.wait(None)) is True


async def test_clearing_forgets_earlier_rings() -> None:
    tower = Bells()
    with tower.bell("mail") as bell:
        tower.ring("mail")
        bell.clear()

        assert await bell.wait(0.01) is False


async def test_waiting_ends_when_its_time_is_up() -> None:
    with Bells().bell("mail") as bell:
        assert await bell.wait(0) is False
        assert await bell.wait(0.01) is False


async def test_a_bell_hears_its_own_queues_only() -> None:
    tower = Bells()
    with tower.bell("mail", "post") as both, tower.bell("fax") as other:
        tower.ring("post")

        assert await both.wait(0) is True
        assert await other.wait(0) is False


async def test_ringing_all_rings_every_bell() -> None:
    tower = Bells()
    with tower.bell("mail") as one, tower.bell("fax") as other:
        tower.ring_all()

        assert await one.wait(0) is True
        assert await other.wait(0) is True


async def test_a_bell_rings_only_while_it_hangs() -> None:
    tower = Bells()
    bell = tower.bell("mail")
    tower.ring("mail")
    assert await bell.wait(0) is False

    assert tower.empty
    with bell:
        assert not tower.empty
    tower.ring("mail")
    assert tower.empty
    assert await bell.wait(0) is False


async def test_two_bells_for_one_queue_both_ring() -> None:
    tower = Bells()
    with tower.bell("mail") as one, tower.bell("mail") as other:
        tower.ring("mail")

        assert await one.wait(0) is True
        assert await other.wait(0) is True
