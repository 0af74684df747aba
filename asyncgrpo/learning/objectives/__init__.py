"""The objective: pure functions of log-probabilities. Tensors in, tensors out; nothing here knows a model.

    loss = Σ_tokens token weight · ( -gate(correction, ratio, advantage) + β · KL weight · KL - entropy_coef · entropy )

| file           | piece                                                                          |
|----------------|--------------------------------------------------------------------------------|
| tokens.py      | what the objective is a function of; masked slots are emptied before any maths |
| ratio.py       | current / proximal at its level, and the bound on every exponent               |
| correction.py  | weight for proximal / behaviour: engine mismatch and staleness                 |
| anchor.py      | proximal log-probabilities that need no forward pass                           |
| gates/         | how far a token may drift before it stops pulling                              |
| filters.py     | tokens that the policy term leaves out beside the gate                         |
| statistics.py  | what must be known of the whole optimiser batch first                          |
| aggregation.py | weight of one token in the loss (numpy, counted where a batch is made)         |
| kl.py          | divergences, for the penalty and for metrics                                   |
| metrics.py     | what is counted, per staleness, and how counts become metrics                  |
| count.py       | the counting                                                                   |
| objective.py   | the composition                                                                |
| build.py       | from a configuration to the composition                                        |
| bias.py        | which pieces are biased, why, and who says so                                  |
| remarks.py     | what a user should know of a configuration, in words                           |
"""
