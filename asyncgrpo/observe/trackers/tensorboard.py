"""TensorBoard: event files, written without torch or TensorFlow."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from asyncgrpo.observe.trackers.tracker import About

__all__ = ["TensorBoard"]


class TensorBoard:
    replaces = True

    def __init__(self) -> None:
        self._config: str | None = None
        self._last: int | None = None

    def open(self, about: About) -> None:
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._writer: Any = EventFileWriter(str(about.folder / "tensorboard"))
        self._config = json.dumps(about.config, indent=2)

    def log(self, step: int, time: float, values: Mapping[str, float]) -> None:
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from tensorboard.compat.proto.summary_pb2 import Summary

        if self._last is None or step <= self._last:
            # Readers drop what earlier files, or this one, have of this step and of later ones.
            start = SessionLog(status=SessionLog.START)
            self._writer.add_event(Event(wall_time=time, step=step, session_log=start))
        if self._config is not None:
            self._writer.add_event(Event(wall_time=time, step=step, summary=_text("config", self._config)))
            self._config = None
        scalars = [Summary.Value(tag=name, simple_value=value) for name, value in values.items()]
        self._writer.add_event(Event(wall_time=time, step=step, summary=Summary(value=scalars)))
        self._writer.flush()
        self._last = step

    def close(self) -> None:
        self._writer.close()


def _text(tag: str, text: str) -> Any:
    """A text of TensorBoard is Markdown; indented by four it is shown as it is."""
    from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
    from tensorboard.compat.proto.tensor_pb2 import TensorProto
    from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto

    shown = "\n".join(f"    {line}" for line in text.splitlines())
    shape = TensorShapeProto(dim=[TensorShapeProto.Dim(size=1)])
    tensor = TensorProto(dtype="DT_STRING", string_val=[shown.encode()], tensor_shape=shape)
    metadata = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name="text"))
    return Summary(value=[Summary.Value(tag=tag, metadata=metadata, tensor=tensor)])
