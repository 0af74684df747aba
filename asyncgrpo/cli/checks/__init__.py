"""The checks of `asyncgrpo doctor`."""
