"""Gates: how far the current policy may drift before a token stops pulling.

Each gate names the ratio it gates. Ratio gates act on r = π/π_old, what reuse and several updates per step add, and
multiply by the correction's weight. Product gates act on w = weight · r, which is π/μ where nothing was truncated.

| file         | gates                        | of               | beyond its bound a token                        |
|--------------|------------------------------|------------------|-------------------------------------------------|
| clip.py      | clip, none                   | r                | has no gradient                                 |
| geometric.py | gmpo                         | log r, then mean | has no gradient, still counts in the mean       |
| weighted.py  | cispo; aipo, topr            | r; w             | keeps its gradient, at the weight of the bound  |
| soft.py      | sapo; vespo                  | r; w of sequence | fades (no bound)                                |
| trust.py     | dppo_tv, dppo_kl, m2po       | w                | has no gradient if it moves further away        |
"""
