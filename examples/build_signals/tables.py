"""What is known about batches of changes and their builds."""

from __future__ import annotations

from sqlalchemy import JSON, ForeignKey, String
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from examples.build_signals.runner import BuildStatus


class Base(DeclarativeBase):
    """The application's own tables."""


class Batch(Base):
    """Changes that are to be built together, on top of others."""

    __tablename__ = "batches"

    id: Mapped[int] = mapped_column(primary_key=True)
    base: Mapped[list[str]] = mapped_column(JSON)
    head: Mapped[list[str]] = mapped_column(JSON)
    wanted: Mapped[bool] = mapped_column(default=True)
    """Whether the result is still wanted."""


class Build(Base):
    """A build that was triggered, with the last status seen. A final status is never overwritten."""

    __tablename__ = "builds"

    id: Mapped[str] = mapped_column(String(100), primary_key=True)
    batch_id: Mapped[int] = mapped_column(ForeignKey("batches.id"), unique=True)
    status: Mapped[BuildStatus] = mapped_column(String(20))
    note: Mapped[str | None] = mapped_column(String(200))
    """Why it ended, if the runner did not say so itself."""

    @property
    def state(self) -> BuildStatus:
        """The status as its enum."""
        return BuildStatus(self.status)


class Wake(Base):
    """The next stage was woken: once for each change of a build's status."""

    __tablename__ = "wakes"

    id: Mapped[int] = mapped_column(primary_key=True)
    build_id: Mapped[str] = mapped_column(String(100))
    status: Mapped[BuildStatus] = mapped_column(String(20))
