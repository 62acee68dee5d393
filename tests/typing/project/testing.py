"""The shop's tests."""

from datetime import timedelta

from shop import broker, receipts, take

from nightmail.testing import TestOutboxBroker


async def test_an_order_is_taken() -> None:
    tb = TestOutboxBroker(broker)
    async with tb as br:
        await br.publish({"id": 1, "item": "kettle"}, "orders")
        await tb.advance(timedelta(minutes=10))
        take.mock.assert_called_with({"id": 1, "item": "kettle"})
        receipts.mock.assert_called_once()
        await take.assert_any_call({"id": 1, "item": "kettle"}, queue="orders", activate_in=0)
        await receipts.assert_called_once_with(timer_id="receipt-1", activate_in=timedelta(minutes=1))
        assert [published.queue for published in tb.published]
