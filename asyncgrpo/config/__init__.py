"""Typed configuration of a run. Imports neither torch nor vLLM.

`RunConfig` is the whole; `loading` reads YAML and command-line overrides and remembers where each value came from;
`flat` is the Python class with TRL's flat names. The three share one set of fields.
"""

from asyncgrpo.config.root import RunConfig

__all__ = ["RunConfig"]
