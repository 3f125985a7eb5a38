"""Who is cancelled again and again ends for certain, and still does what it owes on its way out."""

import asyncio

from shared import cancellation
from shared.cancellation import stop, to_the_end


async def test_work_on_the_way_out_is_not_cut_off_by_who_asks_once_more(monkeypatch) -> None:
    monkeypatch.setattr(cancellation, "ASK_AGAIN_S", 0.01)
    reached: list[str] = []

    async def leave(where: str) -> None:
        await asyncio.sleep(0.1)
        reached.append(where)

    async def service(plainly: bool) -> None:
        try:
            await asyncio.sleep(60)
        finally:
            await (leave("plainly") if plainly else to_the_end(leave("to the end")))

    services = [asyncio.create_task(service(plainly)) for plainly in (True, False)]
    await asyncio.sleep(0)
    await stop(*services)
    assert reached == ["to the end"]
    assert all(task.cancelled() for task in services)
