"""When a checkpoint is due. Pure."""

from __future__ import annotations

from asyncgrpo.config.sections import CheckpointSection

__all__ = ["due"]


def due(section: CheckpointSection, step: int, seconds: float) -> str | None:
    """The setting by which one is due after `step`, `seconds` after the last was saved or the run began; None if it is
    not due."""
    if section.save_steps and step % section.save_steps == 0:
        return f"checkpoint.save_steps={section.save_steps}"
    if section.keep_every and step % section.keep_every == 0:
        return f"checkpoint.keep_every={section.keep_every}"
    if section.save_minutes and seconds >= 60 * section.save_minutes:
        return f"checkpoint.save_minutes={section.save_minutes:g}"
    return None
