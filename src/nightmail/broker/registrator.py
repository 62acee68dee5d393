"""What brokers and routers have in common: declaring subscribers and publishers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack, cast, get_args

from faststream.exceptions import SetupError

from nightmail.broker._upstream import (
    EMPTY,
    BrokerConfig,
    PublisherSpecificationConfig,
    PublisherUsecase,
    Registrator,
    SubscriberSpecificationConfig,
)
from nightmail.broker.commands import OutboxPublishCommand
from nightmail.broker.config import OutboxPublisherConfig, OutboxSubscriberConfig
from nightmail.broker.handlers import Handlers
from nightmail.broker.option_checks import check_options
from nightmail.broker.option_help import lists_options
from nightmail.broker.options import (
    PublisherOptions,
    RelayOptions,
    Run,
    SubscriberOptions,
    publish_defaults,
    worker_options,
    worker_settings,
)
from nightmail.broker.process_handlers import ProcessHandlers
from nightmail.broker.publisher import OutboxPublisher
from nightmail.broker.received import Received, ReceivedBatch
from nightmail.broker.relay import passing_on, subscriber_options
from nightmail.broker.specification import OutboxPublisherSpecification, OutboxSubscriberSpecification
from nightmail.broker.subscriber import OutboxSubscriber
from nightmail.engine.queues import check_queues
from nightmail.message import check_queue


class OutboxRegistrator(Registrator[Received | ReceivedBatch, BrokerConfig]):
    """Declares subscribers and publishers."""

    @lists_options(SubscriberOptions)
    def subscriber(  # type: ignore[override]
        self, *queues: str, **options: Unpack[SubscriberOptions]
    ) -> OutboxSubscriber:
        """Deliver the messages of these queues to the decorated handler.

        An option that is not given is that of the router or the broker, if it has one, else as shown here.

        Args:
            queues: The names of the queues.
        """
        check_options("subscriber()", options, SubscriberOptions)
        _refuse_handlers("subscriber", queues)
        if queues and isinstance(queues[0], list | tuple):
            raise TypeError('subscriber() takes the names one by one: subscriber("orders", "returns")')
        worker_settings(worker_options(options), None)
        if options.get("breaker") is not None and options.get("dead_letters", False):
            raise SetupError("a breaker pauses messages, and dead letters are not paused: leave breaker out")
        config = OutboxSubscriberConfig(
            _outer_config=cast("BrokerConfig", self.config),
            _ack_policy=options.get("ack_policy", EMPTY),
            no_reply=options.get("no_reply", False),
            queues=check_queues(queues),
            worker_options=worker_options(options),
            dead_letters=options.get("dead_letters", False),
            max_batch=_max_batch(options),
            propagate_headers=_propagate_headers(options),
            run=_run(options),
        )
        calls = ProcessHandlers() if config.run == "process" else Handlers()
        specification = OutboxSubscriberSpecification(
            cast("BrokerConfig", self.config),
            SubscriberSpecificationConfig(
                title_=options.get("title"),
                description_=options.get("description"),
                include_in_schema=options.get("include_in_schema", True),
            ),
            calls,
            config.queues,
        )
        subscriber = OutboxSubscriber(config, specification, calls)
        super().subscriber(subscriber, persistent=options.get("persistent", True))
        return subscriber.add_call(
            parser_=options.get("parser") or self._parser,
            decoder_=options.get("decoder") or self._decoder,
            dependencies_=options.get("dependencies", ()),
            codec_=options.get("codec"),
        )

    @lists_options(PublisherOptions)
    def publisher(  # type: ignore[override]
        self, queue: str, **options: Unpack[PublisherOptions]
    ) -> OutboxPublisher:
        """A publisher for this queue, to call or to decorate a handler with.

        What `publish` takes may be given here too, as the default for each message.

        Args:
            queue: The queue to publish to.
        """
        check_options("publisher()", options, PublisherOptions)
        _refuse_handlers("publisher", (queue,))
        check_queue(queue)
        defaults = publish_defaults(options)
        OutboxPublishCommand((None,), queue, defaults).check()
        outer = cast("BrokerConfig", self.config)
        publisher = OutboxPublisher(
            OutboxPublisherConfig(_outer_config=outer, queue=queue, defaults=defaults),
            OutboxPublisherSpecification(
                outer,
                PublisherSpecificationConfig(
                    title_=options.get("title"),
                    description_=options.get("description"),
                    schema_=options.get("schema"),
                    include_in_schema=options.get("include_in_schema", True),
                ),
                queue,
            ),
        )
        super().publisher(publisher, persistent=options.get("persistent", True))
        return publisher

    @lists_options(RelayOptions)
    def relay(self, *queues: str, to: PublisherUsecase, **options: Unpack[RelayOptions]) -> OutboxSubscriber:
        """Pass the messages of these queues on as they are, and acknowledge each once the other broker took it.

        Args:
            queues: The names of the queues.
            to: A publisher of that broker, whichever of FastStream's it is: `rabbit.publisher("orders")`.
        """
        check_options("relay()", options, RelayOptions)
        handler = passing_on(to, options.get("id_prefix", ""))
        subscriber = self.subscriber(*queues, **subscriber_options(options))
        to(subscriber(handler))
        return subscriber


def _refuse_handlers(what: str, queues: Sequence[object]) -> None:
    """Explain a decorator without parentheses: the handler arrives as the name of a queue."""
    if queues and callable(queues[0]):
        raise TypeError(f'{what}() needs the name of a queue: write @broker.{what}("orders")')


def _propagate_headers(options: SubscriberOptions) -> bool:
    propagate = options.get("propagate_headers", False)
    if propagate and options.get("batch", False):
        raise SetupError("propagate_headers is for one message at a time: the headers of a batch are many")
    return propagate


def _run(options: SubscriberOptions) -> Run:
    run = options.get("run", "thread")
    if run not in get_args(Run):
        raise ValueError(f'run must be "thread" or "process", not {run!r}')
    return run


def _max_batch(options: SubscriberOptions) -> int | None:
    if not options.get("batch", False):
        if "max_batch" in options:
            raise SetupError("max_batch needs batch=True: without it a handler gets one message at a time")
        return None
    max_batch = options.get("max_batch", 100)
    if max_batch < 1:
        raise ValueError(f"max_batch must be at least 1, not {max_batch}")
    return max_batch
