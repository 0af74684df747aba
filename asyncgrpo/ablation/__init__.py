"""Staleness ablations: a study is arms x seeds of runs, what was expected of them beforehand, and what came out.

`study` reads STUDY.yaml, `arms` makes its runs, `runner` has them done in `worker` processes, `records` keeps what they
report, `kinds` are the ways to be stale; `results`, `report` and `check` are made from the records alone.
"""
