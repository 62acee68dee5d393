"""Messages in Redis, a single server or a cluster.

What survives what, by how the server is run:

    appendonly yes, appendfsync always      a crash of the server or its machine loses nothing it has answered
    appendonly yes, appendfsync everysec    a crash of the server loses nothing, one of its machine up to two seconds
    snapshots only, or nothing              a crash loses everything since the last snapshot

Replication is asynchronous: a failover loses what the promoted replica had not received yet, also in a cluster.
`wait_replicas` narrows that: a publish that fewer replicas have confirmed raises `PublishUncertain`. It does not close
it, because a replica that lacks the message may still be promoted. Settlements that a failover loses are repeated
deliveries.
"""

from nightmail.stores.redis.store import RedisStore

__all__ = ["RedisStore"]
