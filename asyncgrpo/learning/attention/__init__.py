"""Attention over packed rows: each prompt once, its completions beside each other, no padding, no dense mask."""
