"""Process of one learner rank: `python -m asyncgrpo.learning.rank`, started by `client.LearnerClient`.

It answers the calls of `protocol`, one after the other, on an inherited socket. It ends when that socket closes, and
at once, even in the middle of a step, when the orchestrator's process dies.
"""

from __future__ import annotations

import argparse
import importlib
import logging
import os
import socket
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from asyncgrpo.config import RunConfig
from asyncgrpo.config.devices import cores_of
from asyncgrpo.guardian import die_with_parent
from asyncgrpo.learning import protocol, wire
from asyncgrpo.learning.wire import Message

if TYPE_CHECKING:
    from asyncgrpo.learning.learner import Learner

logger = logging.getLogger("asyncgrpo.learning.rank")


def main() -> None:
    arguments = _parse_arguments()
    die_with_parent(arguments.parent)  # while this process computes it reads no socket
    os.set_inheritable(arguments.fd, False)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    config = RunConfig.model_validate_json(Path(arguments.config_file).read_text())
    with socket.socket(fileno=arguments.fd) as connection:
        serve(connection, lambda: build_learner(config, arguments.rank, arguments.world, arguments.rendezvous))


def build_learner(config: RunConfig, rank: int, world_size: int, rendezvous: str) -> Learner:
    """Pin this process to its device, join the other ranks, load the model."""
    device = config.learner.devices[rank]
    named = cores_of(device)
    if named:  # before torch starts its threads, which inherit this
        os.sched_setaffinity(0, named)
    threads = len(named) if named else max(1, len(os.sched_getaffinity(0)) // world_size)
    if named or world_size > 1:
        os.environ["OMP_NUM_THREADS"] = str(threads)

    import torch

    from asyncgrpo.learning.learner import Learner
    from asyncgrpo.learning.random_state import reseed

    if named or world_size > 1:
        torch.set_num_threads(threads)
    kind = torch_device(device)
    if world_size > 1:
        os.environ.update(RANK=str(rank), WORLD_SIZE=str(world_size), LOCAL_RANK="0", LOCAL_WORLD_SIZE=str(world_size))
        torch.distributed.init_process_group(
            "nccl" if kind == "cuda" else "gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=world_size
        )
    reseed(config.run.seed, rank)  # or numpy and Python would start differently in every run
    logger.info("rank %d of %d on %s, %d threads", rank, world_size, device, torch.get_num_threads())
    return Learner(config, kind, rank, world_size)


def torch_device(device: str) -> str:
    """`cpu` or `cuda`: a rank's process sees only its own GPU (`gpu_environment`), so no number is needed."""
    import torch

    kind = device.partition(":")[0]
    if kind == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    return kind


def inline_device(device: str) -> str:
    """The same in the orchestrator's process, which sees every GPU: the number counts."""
    return device if device.startswith("cuda") else torch_device(device)


def serve(connection: socket.socket, build: Callable[[], Learner]) -> None:
    """Answer calls until the other end closes. The first call is `start`."""
    learner: Learner | None = None
    while (request := wire.receive(connection)) is not None:
        try:
            if learner is None:
                learner = build()
            answer = dispatch(learner, request)
        except Exception as error:  # the boundary: the orchestrator gets every error, and decides
            logger.exception("%s failed", request.kind)
            described = {"type": type(error).__name__, "message": str(error), "traceback": traceback.format_exc()}
            answer = Message("error", described)
        arguments = {**answer.arguments, "call": request.arguments.get("call")}
        try:
            wire.send(connection, Message(answer.kind, arguments, answer.arrays))
        except OSError:
            return  # the orchestrator left while we computed


def dispatch(learner: Learner, request: Message) -> Message:
    """Run one call. Raises whatever the learner raises."""
    arguments = request.arguments
    match request.kind:
        case "start":
            return Message("ok")
        case "train":
            return protocol.encode_report(learner.train(protocol.decode_train(request)))
        case "score":
            return protocol.encode_scores(learner.score(*protocol.decode_score(request)))
        case "write_snapshot":
            snapshot = learner.write_snapshot(arguments["path"], arguments["version"], arguments["perturbation"])
            return protocol.encode_snapshot(snapshot)
        case "save_model":
            learner.save_model(arguments["directory"])
            return Message("ok")
        case "save":
            return Message("ok", {"bytes": learner.save(arguments["directory"])})
        case "load":
            return protocol.encode_resumed(learner.load(arguments["directory"], arguments["version"]))
        case "run":
            module, _, name = arguments["function"].partition(":")
            getattr(importlib.import_module(module), name)(learner, **arguments["keywords"])
            return Message("ok")
        case unknown:
            raise ValueError(f"unknown call {unknown!r}")


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="One rank of the learner; started by the orchestrator.")
    parser.add_argument("--fd", type=int, required=True, help="inherited socket to the orchestrator")
    parser.add_argument("--parent", type=int, required=True, help="process id of the orchestrator")
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--world", type=int, required=True)
    parser.add_argument("--config-file", required=True, help="the run's configuration as JSON")
    parser.add_argument("--rendezvous", required=True, help="file through which ranks find each other")
    return parser.parse_args()


if __name__ == "__main__":
    main()
