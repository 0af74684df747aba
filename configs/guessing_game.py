"""A game of several turns, for configs/guessing_game.yaml: guess a number from 1 to 9, being told higher or lower."""

import re

from asyncgrpo.environments import Turn

FOUND = (1.0, 0.9, 0.8, 0.7)
"""Reward of the guess that is right: the earlier, the more. A game that runs out of turns gives nothing."""
FORFEIT = -1.0
"""Of an answer that is no guess, or does not end: the game is over. Nothing is worse, so playing on always pays."""


class Guessing:
    """One game."""

    def reset(self, number):
        self.number = number

    def step(self, answer):
        guess = re.fullmatch(r"\D{0,12}([1-9])\D{0,12}", answer.text.strip())
        if answer.is_cut or guess is None:
            return Turn(done=True, reward=FORFEIT)
        if int(guess[1]) == self.number:
            return Turn(done=True, reward=FOUND[min(answer.turn, len(FOUND)) - 1])
        return Turn(messages="Higher." if int(guess[1]) < self.number else "Lower.", reward=0.0)
