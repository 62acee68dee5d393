"""All parts of the suite in one class."""

from __future__ import annotations

from collections import Counter

from nightmail.testing.conformance.backlogs import BacklogsConformance
from nightmail.testing.conformance.blocking import BlockingConformance
from nightmail.testing.conformance.blocking_leases import BlockingLeasesConformance
from nightmail.testing.conformance.cancel import CancelConformance
from nightmail.testing.conformance.cancellation import CancellationConformance
from nightmail.testing.conformance.claim import ClaimConformance
from nightmail.testing.conformance.committed import CommittedConformance
from nightmail.testing.conformance.contended_dead import ContendedDeadConformance
from nightmail.testing.conformance.dead_claim import DeadClaimConformance
from nightmail.testing.conformance.dead_lease import DeadLeaseConformance
from nightmail.testing.conformance.dead_not_messages import DeadNotMessagesConformance
from nightmail.testing.conformance.dead_publish import DeadPublishConformance
from nightmail.testing.conformance.dead_settle import DeadSettleConformance
from nightmail.testing.conformance.dead_transaction import DeadTransactionConformance
from nightmail.testing.conformance.dead_wakeup import DeadWakeupConformance
from nightmail.testing.conformance.dedup import DedupConformance
from nightmail.testing.conformance.delay import DelayConformance
from nightmail.testing.conformance.diagnosis import DiagnosisConformance
from nightmail.testing.conformance.event_loops import EventLoopsConformance
from nightmail.testing.conformance.facts import FactsConformance
from nightmail.testing.conformance.find import FindConformance
from nightmail.testing.conformance.fixtures import StoreFixtures
from nightmail.testing.conformance.freed_keys import FreedKeysConformance
from nightmail.testing.conformance.inspect import InspectConformance
from nightmail.testing.conformance.keeper import KeeperConformance
from nightmail.testing.conformance.lease import LeaseConformance
from nightmail.testing.conformance.locked import LockedConformance
from nightmail.testing.conformance.ordering import OrderingConformance
from nightmail.testing.conformance.overlooked import OverlookedConformance
from nightmail.testing.conformance.pauses import PausesConformance
from nightmail.testing.conformance.priority import PriorityConformance
from nightmail.testing.conformance.publish import PublishConformance
from nightmail.testing.conformance.rearm import RearmConformance
from nightmail.testing.conformance.redrive import RedriveConformance
from nightmail.testing.conformance.refused import RefusedConformance
from nightmail.testing.conformance.reserved_headers import ReservedHeadersConformance
from nightmail.testing.conformance.schema import SchemaConformance
from nightmail.testing.conformance.settle import SettleConformance
from nightmail.testing.conformance.settle_batch import SettleBatchConformance
from nightmail.testing.conformance.settle_dead import SettleDeadConformance
from nightmail.testing.conformance.sizes import SizesConformance
from nightmail.testing.conformance.stopping import StoppingConformance
from nightmail.testing.conformance.supersede import SupersedeConformance
from nightmail.testing.conformance.sweep import SweepConformance
from nightmail.testing.conformance.timers import TimersConformance
from nightmail.testing.conformance.transaction import TransactionConformance
from nightmail.testing.conformance.wakeup import WakeupConformance
from nightmail.testing.conformance.why import WhyConformance
from nightmail.testing.conformance.workers import WorkersConformance


class StoreConformance(
    PublishConformance,
    DelayConformance,
    TimersConformance,
    SupersedeConformance,
    RearmConformance,
    DedupConformance,
    CancelConformance,
    CancellationConformance,
    ClaimConformance,
    OrderingConformance,
    BacklogsConformance,
    PriorityConformance,
    OverlookedConformance,
    LockedConformance,
    LeaseConformance,
    KeeperConformance,
    SettleConformance,
    SettleDeadConformance,
    SettleBatchConformance,
    CommittedConformance,
    RefusedConformance,
    TransactionConformance,
    BlockingConformance,
    BlockingLeasesConformance,
    WakeupConformance,
    FreedKeysConformance,
    InspectConformance,
    FindConformance,
    DeadClaimConformance,
    DeadLeaseConformance,
    DeadSettleConformance,
    DeadTransactionConformance,
    DeadWakeupConformance,
    DeadNotMessagesConformance,
    ContendedDeadConformance,
    RedriveConformance,
    ReservedHeadersConformance,
    SweepConformance,
    PausesConformance,
    StoppingConformance,
    WorkersConformance,
    FactsConformance,
    WhyConformance,
    DiagnosisConformance,
    SchemaConformance,
    EventLoopsConformance,
    DeadPublishConformance,
    SizesConformance,
    StoreFixtures,
):
    """Inherit from this and override `harness`: nothing else is needed to prove a store.

    A test that needs a capability which the store lacks is skipped, and the reason names the capability.
    """


_defined = Counter(
    name for part in StoreConformance.__bases__ for name in vars(part) if name.startswith("test_")
)
if _hidden := sorted(name for name, times in _defined.items() if times > 1):
    # Python would silently keep one of them, and the other would never run.
    raise TypeError(f"two parts of the suite define the same test: {', '.join(_hidden)}")
