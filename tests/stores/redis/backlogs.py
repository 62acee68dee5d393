"""Long backlogs made quickly, and what scripts cost with them."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any, Final

from nightmail.stores.redis.scripts import Script, script

PORTION: Final = 1000
"""How many messages one script moves at most."""
TAG: Final = "{nightmail:orders}"

# More followers like the last one. KEYS: the queue's tag; ARGV: the ordering key, and how many.
COPY_THE_LAST: Final = """
    local tag, key = KEYS[1], ARGV[1]
    local last = redis.call('GET', tag .. ':last')
    local fields = redis.call('HGETALL', tag .. ':m:' .. last)
    local due = redis.call('ZSCORE', tag .. ':blocked', last)
    local first, process = tonumber(last:sub(1, 13), 16), last:sub(14)
    local line, blocked = {}, {}
    for place = 1, tonumber(ARGV[2]) do
        last = string.format('%013x', first + place) .. process
        redis.call('HSET', tag .. ':m:' .. last, unpack(fields))
        line[#line + 1], line[#line + 2] = 0, key .. '\\0' .. last
        blocked[#blocked + 1], blocked[#blocked + 2] = due, last
    end
    redis.call('ZADD', tag .. ':lines', unpack(line))
    redis.call('ZADD', tag .. ':blocked', unpack(blocked))
    redis.call('SET', tag .. ':last', last)
"""

# Put before a script: each of its calls counts for one, and so does each value in an answer.
COUNT: Final = """
    local server = redis
    local function counted(answer)
        server.call('INCRBY', 'cost', 1 + (type(answer) == 'table' and #answer or 0))
        return answer
    end
    local redis = setmetatable({
        call = function(...) return counted(server.call(...)) end,
        pcall = function(...) return counted(server.pcall(...)) end,
    }, { __index = server })
"""


def counted(name: str, *, flags: bool = True) -> Script:
    """The script of this name, which counts what it asks for."""
    plain = script(name, flags=flags)
    text = plain.flags + COUNT + plain.text.removeprefix(plain.flags)
    return replace(plain, text=text, digest=hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())


async def copy_the_last(own: Any, count: int) -> None:
    """So many more followers in the line of `k`; more at once would overflow Lua's stack."""
    async with own.pipeline(transaction=False) as pipeline:
        for done in range(0, count, PORTION):
            pipeline.eval(COPY_THE_LAST, 1, TAG, "k", min(PORTION, count - done))
        await pipeline.execute()
