"""What a run that does not move is waiting for, in words: learner, groups, engines, and which deadline will end it."""

from __future__ import annotations

from collections.abc import Hashable

from asyncgrpo.books import Books
from asyncgrpo.buffer.contract import StalenessContract
from asyncgrpo.config import RunConfig
from asyncgrpo.session import Session

NAMED = 8
"""Groups that are named, the most urgent first."""


def signs(session: Session, contract: StalenessContract) -> Hashable | None:
    """Differs from what it was whenever a step, a group or a publish got on. None while a guard has paused the run."""
    state = session.learner_time.state
    if state == "paused":
        return None
    return (
        state,
        contract.version,
        contract.served_version,
        contract.admitted,
        contract.in_flight,
        contract.buffered,
        contract.fates.total(),
        *session.pool.versions.values(),
    )


def describe(session: Session, contract: StalenessContract, books: Books) -> list[str]:
    """Lines, the learner's first. From any thread: it only reads."""
    return [
        _learner(session, contract),
        _groups(contract, books),
        *(_engine(session, client.name, contract.version) for client in session.pool.clients),
    ]


def _learner(session: Session, contract: StalenessContract) -> str:
    state = session.learner_time.state
    limit = _limits(session.job.config).get(state, "")
    return f"the learner, at version {contract.version}, is {state}" + (f" ({limit})" if limit else "")


def _limits(config: RunConfig) -> dict[str, str]:
    """The deadlines of what the learner does."""
    step, publish = f"learner.step_timeout={config.learner.step_timeout:g}", config.weights.publish_timeout
    stall, write = config.buffer.stall_timeout, config.observe.write_timeout
    return {
        "waiting": f"for groups: buffer.stall_timeout={stall:g}, or until records are written: "
        f"observe.write_timeout={write:g}",
        "training": step,
        "snapshot": f"{step}, or the publish before: weights.publish_timeout={publish:g} an engine",
        "checkpoint": f"checkpoint.save_timeout={config.checkpoint.save_timeout:g}; going back to one: "
        f"learner.start_timeout={config.learner.start_timeout:g}, then weights.publish_timeout={publish:g} an engine",
    }


def _groups(contract: StalenessContract, books: Books) -> str:
    urgent = books.named(contract.blocking()[:NAMED])
    return (
        f"{contract.in_flight} groups in flight{f', most urgent first: {urgent}' if urgent else ''}; "
        f"{contract.buffered} in the buffer; {contract.slots_held} of {contract.slots} slots held"
    )


def _engine(session: Session, name: str, version: int) -> str:
    pool, client = session.pool, next(client for client in session.pool.clients if client.name == name)
    served = pool.versions[name]
    state = f"serves version {served}" if name in pool.serving else f"gets no work, last served version {served}"
    if session.publisher.given(name) is None:
        state += f", a publish to it is under way or failed (the learner has version {version})"
    tokens = pool.outstanding_tokens(name)
    return f"{name} at {client.shown_url} {state}; {client.open_requests} requests open, {tokens} tokens leased"
