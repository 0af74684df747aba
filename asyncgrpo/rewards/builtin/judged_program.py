"""Program of one test in a sandbox: a fresh interpreter, in which there is nothing of the sandbox but a socket.

What it is to do it asks for piece by piece, by one byte each: the code, once that has run the test, once that has run
a word, which it says back. A program has no test and says nothing: it ends as Python ends. Only built-in modules are
imported, so that the code finds Python as it always does.
"""

from __future__ import annotations

import os
import sys

TALK = 3
"""The handle of the socket."""


def main() -> None:
    os.set_inheritable(TALK, False)
    is_program = sys.argv[1] == "program"
    scope = _main_module()
    sys.argv[:] = ["solution.py"]
    code = ask().decode()
    if is_program:
        os.close(TALK)
        exec(compile(code, "solution.py", "exec"), scope)
        return
    try:
        exec(compile(code, "solution.py", "exec"), scope)
        exec(compile(ask().decode(), "test.py", "exec"), scope)
    except SystemExit:
        os._exit(1)
    sys.stdout.flush()
    os.write(TALK, ask())
    os._exit(0)


def _main_module() -> dict[str, object]:
    """The names of a module that is the main one in our place."""
    module = type(sys)("__main__")
    module.__dict__["__builtins__"] = __builtins__
    sys.modules["__main__"] = module
    return module.__dict__


def ask() -> bytes:
    os.write(TALK, b"?")
    size = int.from_bytes(_read(8), "big")
    return _read(size)


def _read(size: int) -> bytes:
    got = b""
    while len(got) < size:
        piece = os.read(TALK, size - len(got))
        if not piece:
            os._exit(1)
        got += piece
    return got


if __name__ == "__main__":
    main()
