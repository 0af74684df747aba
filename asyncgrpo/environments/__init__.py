"""Trajectories of several turns: what an environment says between the answers of the model, and tools.

`contract` is what users write, `player` the one loop that plays it, `joining` how its words become tokens without
encoding any token anew, `tools` and `parsers` make an environment of functions, `building` checks all that before a run
starts, `calling` is how code of users is called, and `messages` what it may say.
"""

from asyncgrpo.environments.building import Source, build_player
from asyncgrpo.environments.contract import Answer, Environment, Turn
from asyncgrpo.environments.player import Player

__all__ = ["Answer", "Environment", "Player", "Source", "Turn", "build_player"]
