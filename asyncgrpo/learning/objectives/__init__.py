"""The objective: pure functions of log-probabilities. Tensors in, tensors out; nothing here knows a model.

    loss = Σ_tokens -( correction · gate(ratio, advantage) - β · ratio · KL ) · token weight

| file           | piece                                                           |
|----------------|-----------------------------------------------------------------|
| ratio.py       | current / proximal, and the bound on every exponent             |
| gate.py        | what reuse and several updates may do with that ratio: the clip |
| correction.py  | weight for proximal / behaviour: engine mismatch and staleness  |
| aggregation.py | weight of one token in the loss                                 |
| kl.py          | divergences, for the penalty and for metrics                    |
| metrics.py     | what is counted about a batch, and how counts become metrics    |
| objective.py   | the composition                                                 |
"""
