"""One entry of `rewards`: a function by path, a reward model, or a server. See docs/rewards.md."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, PositiveFloat, PositiveInt, field_serializer, model_validator

from asyncgrpo.config.devices import check_devices
from asyncgrpo.config.secrets import has_unsafe_login, is_http, masked_url
from asyncgrpo.config.section import PathText, Section

LARGEST_WEIGHT = 1e6
"""Of a reward, either sign."""
MAX_CALLS = 64
"""Calls of one function at the same time, unless told otherwise."""

OnRewardError = Literal["stop", "drop_group", "drop_sample"]
RewardWeight = Annotated[float, Field(ge=-LARGEST_WEIGHT, le=LARGEST_WEIGHT)]

_ONLY = {
    "path": ("arguments",),
    "model": ("device", "dtype", "batch_size"),
    "url": ("api_key_env",),
}
"""Settings that one kind of reward has and others do not."""


class RewardSection(Section):
    path: str | None = None
    """`package.module:function`, `file.py:function`, a built-in one as `accuracy`; `environment`: its own reward."""
    model: PathText | None = None
    """In place of `path`: a reward model, a sequence classifier with one label, by folder or hub name."""
    url: str | None = None
    """In place of `path`: a server that scores, as http://host:9000/score."""
    arguments: dict[str, Any] = Field(default={})
    """Given to a class as it is made, or to a function in every call (docs/rewards.md has those of built-in ones)."""
    weight: RewardWeight = 1.0
    """Factor of this reward in the sum."""
    name: str | None = None
    """Name in metrics and files; the function's own name when absent, or the last part of `model` or `url`."""
    timeout: PositiveFloat = 60.0
    """Seconds one call may take; a longer one has failed."""
    on_error: OnRewardError = "stop"
    """A call that fails ends the run (`stop`), or its group is dropped and replaced (`drop_group`), or those samples
    are left out of the group that have no reward by it, as long as 2 stay (`drop_sample`)."""
    per_sample: bool = False
    """One call for each completion instead of each group: with `drop_sample`, what fails costs one sample."""
    max_concurrency: PositiveInt = MAX_CALLS
    """Most calls at the same time."""
    device: str = "cpu"
    """Of a reward model: `cpu`, `cpu:4-7` (cores) or `cuda:1`. It runs in a process of its own."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Type a reward model computes in."""
    batch_size: PositiveInt = 16
    """Texts that a reward model scores at once, of whichever groups wait."""
    api_key_env: str | None = None
    """Environment variable with the key that the server wants, as `Authorization: Bearer KEY`."""

    @field_serializer("url", when_used="json")
    def _without_login(self, url: str | None) -> str | None:
        """What is written down holds no secrets."""
        return None if url is None else masked_url(url)

    @property
    def kind(self) -> Literal["path", "model", "url"]:
        return "path" if self.path is not None else "model" if self.model is not None else "url"

    @property
    def source(self) -> str:
        """What gives the reward, without secrets."""
        return self.path or self.model or masked_url(self.url or "")

    @property
    def label(self) -> str:
        """Its name, or what readers know it by: no folder of this machine, and no address."""
        if self.kind == "url":
            return self.name or urlsplit(self.source).path.rstrip("/").rpartition("/")[2] or "a server"
        return self.name or re.split("[:/]", self.source)[-1]

    @model_validator(mode="after")
    def _is_of_one_kind(self) -> Self:
        given = [kind for kind in _ONLY if getattr(self, kind) is not None]
        if len(given) != 1:
            found = " and ".join(given) or "none of them"
            raise ValueError(f"rewards: an entry has exactly one of path, model and url; one here has {found}")
        for kind, names in _ONLY.items():
            for name in names if kind != given[0] else ():
                if getattr(self, name) != type(self).model_fields[name].default:
                    raise ValueError(f"rewards: {self.source!r} has {name}, which only an entry with {kind} can have")
        return self

    @model_validator(mode="after")
    def _can_be_reached(self) -> Self:
        if self.model is not None:
            check_devices(f"rewards: {self.model!r}: device", (self.device,), gpus_each=1)
            if self.device in ("auto", "cpu:auto"):
                raise ValueError(f"rewards: {self.model!r}: name its device, as cpu, cpu:4-7 or cuda:1")
        if self.url is not None:
            shown = masked_url(self.url)
            if has_unsafe_login(self.url) or not is_http(self.url):
                raise ValueError(
                    f"rewards: {shown!r} is not a URL; write http://host:9000/score, and / ? # \\ @ or a blank in a "
                    "login percent-encoded"
                )
            if self.api_key_env is not None and urlsplit(self.url).username is not None:
                raise ValueError(
                    f"rewards: {shown!r} has a login, and api_key_env={self.api_key_env} names a key; a request "
                    "carries one of them; leave one out"
                )
        return self
