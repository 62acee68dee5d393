"""Registers with the driver the array types that our statements use.

Otherwise it looks them up on the server for every new connection, with its slowest query, and sets `jit` around that.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Final

# The OIDs of each type and of its array, which have never changed.
_TYPES: Final = {
    "bool": (16, 1000),
    "bytea": (17, 1001),
    "int2": (21, 1005),
    "int4": (23, 1007),
    "int8": (20, 1016),
    "interval": (1186, 1187),
    "timestamptz": (1184, 1185),
    "uuid": (2950, 2951),
}
_NOT_OF_ARRAYS: Final = ("basetype", "basetype_name", "range_subtype", "attrtypoids", "attrnames")
_ARRAYS: Final = [
    {
        **dict.fromkeys(_NOT_OF_ARRAYS),
        "oid": array,
        "ns": "pg_catalog",
        "name": f"_{name}",
        "kind": b"b",
        "elemtype": element,
        "elemtype_name": name,
        "elemdelim": ",",
    }
    for name, (element, array) in _TYPES.items()
]


def tell(settings: Any) -> None:
    """Register the types with a connection's settings. A driver that does not allow it goes on asking the server."""
    with suppress(AttributeError, KeyError, TypeError):
        settings.register_data_types(_ARRAYS)
