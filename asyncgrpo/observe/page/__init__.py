"""A page to look at a run with: live beside /metrics, over a finished run's folder, or as one file of HTML.

All three show what `RunReader.answer` makes of the run folder, and nothing else is read. Its answers, as JSON:

| ask | answer |
|---|---|
| `api/run` | name, state, `revision` (changes with the folder), steps done and wanted, time, the newest step's record |
| `api/series?fields=["a","b"]` | curves over steps; of all fields for `[]`, without it of those that are charted |
| `api/numbers` | every field of a step record: meaning, first, newest, least and largest value |
| `api/timeline?from=T&to=T` | what learner and engines did, and the flow's levels, in a window of time |
| `api/rollouts` | which rollout files there are |
| `api/rollouts?of=step_000012` | the groups of a file, a line each |
| `api/group?of=step_000012&group=34` | one group: prompt, and its samples without their tokens |
| `api/tokens?of=step_000012&group=34&sample=0` | its tokens: texts, versions, log-probabilities, whether sampled |
| `api/config` | the text of config.yaml, and what resumes have changed |
| `api/warnings` | the newest warnings and errors of the orchestrator's log |

Curves have `width` steps per point; where that is not 1, each field has `min` and `max` beside `mean`. The evaluations
are with them. What is not there is 404 and what cannot be understood 400, both with `{"error": "…"}`. Long runs are
thinned here, not in the browser: no answer grows with the run, but for the list of rollout files, which are ranges.
"""
