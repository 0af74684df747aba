"""From a dataset to an endless, resumable stream of tokenised prompts. Imports no torch of its own.

`rows` reads and checks the dataset, `encoding` makes token ids of a prompt, `stream` decides the order.
"""

from asyncgrpo.prompts.encoding import load_tokenizer
from asyncgrpo.prompts.rows import load_rows
from asyncgrpo.prompts.stream import PromptStream

__all__ = ["PromptStream", "load_rows", "load_tokenizer"]
