"""Staleness ablations: a study is arms x seeds of runs, what was expected of them beforehand, and what came out.

    STUDY.yaml --> design --> running --> tables --> findings --> report
                              kinds, tasks

`design` makes arms and runs of what a study says, `running` has them done, each as one of the `kinds` of staleness and
perhaps of the shipped `tasks`, `tables` keeps what they report, and `findings` and `report` are made from that alone.
"""
