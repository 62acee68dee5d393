"""The designs that are compared: a file of SQL each, how full a page is packed, and whether claims keep a mark."""

from dataclasses import dataclass
from functools import cache
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Design:
    name: str
    title: str
    statements: str
    """The file with its statements."""

    table: str = ""
    """The file with its table, if not the same."""

    fillfactor: int = 100
    marked: bool = False
    """Whether a claim starts where the last one found something, with a look at everything once a second."""

    @property
    def schema(self) -> str:
        return f"design_{self.name}"

    def sql(self, name: str) -> str:
        """One of its statements."""
        return _sections(self.statements)[name]

    def create(self) -> str:
        """What makes its table and indexes."""
        return _sections(self.table or self.statements)["table"]


A = Design("a", "(a) two partial indexes", "a.sql")
B = Design("b", "(b) `visible_at` pushed forward", "b.sql")
B_MARK = Design("b_mark", "(b) with the mark", "b.sql", marked=True)
C45 = Design("c45", "(c) fillfactor 45", "c.sql", fillfactor=45)
C50 = Design("c50", "(c) lease outside the index, fillfactor 50", "c.sql", fillfactor=50)
C70 = Design("c70", "(c) fillfactor 70", "c.sql", fillfactor=70)
C90 = Design("c90", "(c) fillfactor 90", "c.sql", fillfactor=90)
C50_MARK = Design("c50_mark", "(c) fillfactor 50, with the mark", "c.sql", fillfactor=50, marked=True)
C50_APART = Design(
    "c50_apart", "(c) fillfactor 50, written columns apart", "c.sql", "apart.sql", fillfactor=50
)


@cache
def _sections(file: str) -> dict[str, str]:
    text = (Path(__file__).parent / file).read_text("utf-8")
    parts = (part.partition("\n") for part in text.split("-- name: ")[1:])
    return {name: body.strip().removesuffix(";") for name, _, body in parts}
