"""Tasks that studies come with: a start, prompts and held-out prompts for each seed."""
