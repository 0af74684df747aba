"""A game of several turns, for configs/guessing_game.yaml: guess a number from 1 to 9, being told higher or lower."""

import re

from asyncgrpo.environments import Turn

FOUND = (1.0, 0.75, 0.5, 0.25)
"""Reward of the guess that is right: the earlier, the more."""


class Guessing:
    """One game. A wrong guess costs nothing, but the next one is worth less; what is no guess costs."""

    def reset(self, number):
        self.number = number

    def step(self, answer):
        if answer.is_cut or not re.fullmatch(r"[1-9]\.?", answer.text.strip()):
            return Turn(messages="Say one number from 1 to 9.", reward=-0.25)
        guess = int(answer.text.strip()[0])
        if guess == self.number:
            return Turn(done=True, reward=FOUND[min(answer.turn, len(FOUND)) - 1])
        return Turn(messages="Higher." if guess < self.number else "Lower.", reward=0.0)
