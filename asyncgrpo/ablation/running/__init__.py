"""Does the runs of a study: worker processes, their progress, what they begin from, and how a study ends."""
