"""A game of several turns, for configs/guessing_game.yaml: guess a number from 1 to 9, being told higher or lower."""

import re

from asyncgrpo.environments import Turn

FOUND = (1.0, 0.8, 0.6, 0.4)
"""Reward of the guess that is right: the earlier, the more."""
FORFEIT = -1.0
"""Of an answer that has no guess in it, or never ends: the game is over."""
PER_WORD = -0.03
"""Of every word but the guess, up to 20."""


class Guessing:
    """One game; a wrong guess costs nothing by itself, but leaves fewer turns."""

    def reset(self, number):
        self.number = number

    def step(self, answer):
        words = re.findall(r"\w+", answer.text)
        guesses = [int(word) for word in words if re.fullmatch("[1-9]", word)]
        if answer.is_cut or not guesses:
            return Turn(done=True, reward=FORFEIT)
        chatter = PER_WORD * min(len(words) - 1, 20)
        guess = guesses[-1]
        if guess == self.number:
            return Turn(done=True, reward=FOUND[min(answer.turn, len(FOUND)) - 1] + chatter)
        return Turn(messages="Higher." if guess < self.number else "Lower.", reward=chatter)
