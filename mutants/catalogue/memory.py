"""The memory store: what every other store is compared with."""

from __future__ import annotations

from typing import Final

from mutants.mutant import Mutant

_SUITE: Final = "tests/stores/memory/test_conformance.py::TestMemory::"

MUTANTS: Final = (
    Mutant(
        name="memory: any token will do",
        why="a late worker ends what another has taken over",
        file="stores/memory/data.py",
        text="        if row is None or row.token != delivery.token:",
        instead="        if row is None or row.token is None:",
        killers=(f"{_SUITE}test_a_late_worker_cannot_settle_what_another_has_taken_over",),
    ),
    Mutant(
        name="memory: a delivery is not counted at the claim",
        why="a message that kills its process is never given up",
        file="stores/memory/rows.py",
        text="        self.deliveries += 1",
        instead="        self.deliveries = 1",
        killers=(f"{_SUITE}test_every_lost_lease_is_counted_as_a_delivery_and_not_as_an_attempt",),
    ),
    Mutant(
        name="memory: a message is claimed a moment late",
        why="a worker that wakes up when a message is due does not get it",
        file="stores/memory/agenda.py",
        text="first[0] <= time:",
        instead="first[0] < time:",
        killers=(f"{_SUITE}test_a_message_is_claimed_at_the_microsecond_it_is_due_and_not_before",),
    ),
    Mutant(
        name="memory: a lease protects a moment too long",
        why="a message that no worker has cannot be cancelled",
        file="stores/memory/rows.py",
        text="self.lease_until > now",
        instead="self.lease_until >= now",
        killers=(f"{_SUITE}test_a_lease_protects_until_the_very_moment_it_expires",),
    ),
    Mutant(
        name="memory: a replaced message is not marked",
        why="a timer that was moved while it ran is retried beside the new one",
        file="stores/memory/publishing.py",
        text="            owner.superseded = True\n",
        instead="",
        killers=(f"{_SUITE}test_whatever_brings_a_superseded_message_back_makes_it_due_at_once_and_marked",),
    ),
    Mutant(
        name="memory: a dead letter too large for its reader is offered",
        why="one dead letter ends every worker that reads it",
        file="stores/memory/letters.py",
        text="        if len(letter.record.body) > max_body_bytes:",
        instead="        if letter.due_at is None:",
        killers=(f"{_SUITE}test_a_letter_over_the_limit_of_the_reader_is_given_up_unread_and_kept",),
    ),
    Mutant(
        name="memory: a worker that signs off leaves no trace",
        why="`why` cannot say when a queue was last consumed",
        file="stores/memory/controls.py",
        text="        self._leave([] if worker is None else [worker], now)",
        instead="        self._leave([], now)",
        killers=(f"{_SUITE}test_the_last_consumer_of_each_queue_is_known_after_it_signed_off",),
    ),
)
