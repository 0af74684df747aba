"""The dashboard of one run, in reading order: is it learning, is it stable, where does time go; then flow, freshness,
engines and the machine."""

from __future__ import annotations

from panels import Dashboard, Query
from rows.engines import ENGINES
from rows.flow import FLOW
from rows.freshness import FRESHNESS
from rows.learning import LEARNING
from rows.machine import MACHINE
from rows.stable import STABLE
from rows.tiles import TILES
from rows.time_shares import TIME

ONE_RUN = Dashboard(
    uid="asyncgrpo-run",
    title="asyncgrpo: one run",
    description="Is it learning, is it stable, where does time go; then flow, freshness, engines and the machine.",
    rows=(TILES, LEARNING, STABLE, TIME, FLOW, FRESHNESS, ENGINES, MACHINE),
    annotations=(
        Query(expr='changes(asyncgrpo_process_start_time_seconds{run="$run"}[1m]) > 0', legend="started"),
        Query(expr='changes(asyncgrpo_checkpoint_step{run="$run"}[1m]) > 0', legend="checkpoint"),
    ),
)
