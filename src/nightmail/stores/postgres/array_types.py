"""The arrays that our statements take and give, told to the driver.

Otherwise it asks the server for them on every new connection, with its slowest query, and sets `jit` around that.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Final

# Of these types the server has had the same numbers for ever: its own and that of its array.
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
    """Tell a connection of the driver's, by its settings. A driver that cannot be told goes on asking the server."""
    with suppress(AttributeError, KeyError, TypeError):
        settings.register_data_types(_ARRAYS)
