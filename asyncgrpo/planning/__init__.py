"""Predicts runs: closed forms, a simulation around the product's own staleness contract, and fits to recorded runs.

Nothing here starts an engine or loads a model.
"""
