"""Held-out prompts, answered by the engines and scored, apart from what is trained."""
