"""A managed engine's process in place of vLLM's, up at once: it hands every connection on to a server elsewhere.

    python -m asyncgrpo.testing.relay --port 8000 --seed 1 --backends 9001,9002

Killed or stopped, it takes the engine away like any server's end; the server behind it, a fake engine in the test's own
process, sees connections break, and can say exactly when. Of several backends the engine's seed picks one. Further
arguments of vLLM are accepted and ignored.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib

CHUNK = 2**16


async def serve(host: str, port: int, backend: int) -> None:
    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        theirs, ours = await asyncio.open_connection(host, backend)
        await asyncio.gather(_copy(reader, ours), _copy(theirs, writer))

    server = await asyncio.start_server(accept, host, port)
    print(f"relay from {host}:{port} to {backend}", flush=True)
    async with server:
        await server.serve_forever()


async def _copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    """Until either side ends, which is passed on."""
    with contextlib.suppress(OSError):
        while data := await source.read(CHUNK):
            target.write(data)
            await target.drain()
    target.close()


def main() -> None:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--backends", required=True, help="not vLLM's: ports, by commas")
    arguments = parser.parse_known_args()[0]
    backends = [int(port) for port in arguments.backends.split(",")]
    asyncio.run(serve(arguments.host, arguments.port, backends[arguments.seed % len(backends)]))


if __name__ == "__main__":
    main()
