"""The quarantined messages that the claims of one worker bring: it keeps one and hands the others back."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from nightmail.engine.prefetch import MOST_AHEAD
from nightmail.engine.quarantine import Quarantine
from nightmail.engine.run import Run
from nightmail.engine.runners import Runners
from nightmail.message import Delivery


class Quarantined:
    """The quarantined message of one worker, and the worker as the others of its process see it."""

    def __init__(self, run: Run, quarantine: Quarantine, runners: Runners) -> None:
        self.message: Delivery | None = None
        """The one that waits until it may run."""
        self.most: int | None = None
        """How many to claim at most, after a claim brought a quarantined message: more of them would be handed back."""
        self._run = run
        self._quarantine = quarantine
        self._runners = runners

    @property
    def is_at_rest(self) -> bool:
        """Whether nothing is in flight, and no claim under way that could change that."""
        return self._run.is_at_rest

    @property
    def has_only_its_quarantined(self) -> bool:
        """Whether nothing is in flight except a quarantined message that has not started."""
        run = self._run
        return len(run.leases) <= 1 and run.in_flight.is_empty and not run.finished

    @property
    def forbids_claims(self) -> bool:
        """Whether a quarantined message, of this worker or another, keeps this one from claiming."""
        return self._quarantine.closed or (self.most is not None and self._quarantine.taken)

    async def wait_claims_allowed(self) -> None:
        """Until claims are allowed; and if this worker gets quarantined messages, until no other worker runs one."""
        await self._quarantine.wait_open()
        if self.most is not None:
            await self._quarantine.wait_free()

    def sort_out(self, quarantined: Sequence[Delivery], *, full: bool) -> None:
        """Keep one quarantined message, hand the others back. While they come, claim singly, then gradually more."""
        if quarantined:
            self.most = 1
            if self.message is None and not self._quarantine.taken and not self._run.stopping.asked.is_set():
                self.message, *quarantined = quarantined
            self._run.hand_back(quarantined)
        elif self.most is not None:
            self.most = self.most * 2 if full and self.most < MOST_AHEAD else None

    async def run(self) -> None:
        """Run the quarantined message when nothing else is in flight; if another worker runs one, hand it back."""
        alone = await self._quarantine.take(self)
        message, self.message = self.message, None
        if message is None:
            self._quarantine.free(self)
        elif not alone:
            self._run.hand_back([message])
        else:
            self._run.in_flight.take_alone(message, ended=partial(self._quarantine.free, self))
            self._runners.start()
            await self._quarantine.wait_open()
            if self._quarantine.taken:
                self.most = None  # It runs for long. Others may run now, but no other quarantined one.

    def forget(self, delivery: Delivery) -> bool:
        """Drop this one if it is the one that waits; whether it was."""
        if delivery != self.message:
            return False
        self.message = None
        return True

    def hand_back(self) -> None:
        """It will not run here any more."""
        if self.message is not None:
            self._run.hand_back([self.message])
            self.message = None
