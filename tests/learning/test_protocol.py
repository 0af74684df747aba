import dataclasses

import numpy as np
from learning_cases import make_config, random_groups

from asyncgrpo.learning import protocol
from asyncgrpo.learning.batching import make_batch, shards
from asyncgrpo.learning.wire import Message, decode, decode_prefix, encode
from asyncgrpo.types import Resumed, SkippedUpdate, Snapshot, StepReport


def over_the_wire(message: Message) -> Message:
    data = b"".join(encode(Message(message.kind, {**message.arguments, "call": 1}, message.arrays)))
    header_bytes, _ = decode_prefix(data[:16])
    return decode(data[16 : 16 + header_bytes], data[16 + header_bytes :])


def test_a_shard_arrives_as_it_left() -> None:
    config = make_config("m", training={"groups_per_step": 2, "num_minibatches": 2})
    for shard in shards(make_batch(random_groups(), 3, config), config, 2):
        arrived = protocol.decode_train(over_the_wire(protocol.encode_train(shard)))
        assert arrived.sizes == shard.sizes
        assert arrived.token_weights.dtype == np.float64
        np.testing.assert_array_equal(arrived.token_weights, shard.token_weights)
        np.testing.assert_array_equal(arrived.minibatch_of_sample, shard.minibatch_of_sample)
        for field in dataclasses.fields(shard.batch):
            np.testing.assert_array_equal(getattr(arrived.batch, field.name), getattr(shard.batch, field.name))


def test_scoring_arrives_as_it_left() -> None:
    asked = [((1, 2), (3,)), ((4,), ()), ((5,), (6, 7))]
    sequences, perturbation = protocol.decode_score(over_the_wire(protocol.encode_score(asked, 9)))
    assert [(tuple(p), tuple(c)) for p, c in sequences] == asked
    assert perturbation == 9
    scores = [np.array([-0.5], dtype=np.float32), np.empty(0, np.float32), np.array([-1.0, -2.0], np.float32)]
    arrived = protocol.decode_scores(over_the_wire(protocol.encode_scores(scores)))
    assert [score.tolist() for score in arrived] == [[-0.5], [], [-1.0, -2.0]]
    assert protocol.decode_scores(over_the_wire(protocol.encode_scores([]))) == []


def test_reports_and_snapshots_arrive_as_they_left() -> None:
    report = StepReport(version=4, metrics={"loss": 0.5}, seconds={"total": 1.5}, memory={"resident": 2**40})
    arrived = protocol.decode_report(over_the_wire(protocol.encode_report(report)))
    assert (arrived, arrived.memory) == (report, {"resident": 2**40})
    skipped = (SkippedUpdate(update=2, minibatch=1, loss=float("inf"), gradient_norm=0.5),)
    report = StepReport(version=4, metrics={}, seconds={}, skipped=skipped)
    assert protocol.decode_report(over_the_wire(protocol.encode_report(report))) == report
    resumed = Resumed(version=4, updates=12, remarks=("one", "two"))
    assert protocol.decode_resumed(over_the_wire(protocol.encode_resumed(resumed))) == resumed
    snapshot = Snapshot(version=4, path="/dev/shm/x", bytes=12, seconds=0.25)
    assert protocol.decode_snapshot(over_the_wire(protocol.encode_snapshot(snapshot))) == snapshot


def test_log_probabilities_of_a_report_arrive_as_they_left() -> None:
    proximal = np.array([-0.5, np.nan], dtype=np.float32)
    report = StepReport(version=4, metrics={}, seconds={}, proximal_logprobs=proximal)
    np.testing.assert_array_equal(
        protocol.decode_report(over_the_wire(protocol.encode_report(report))).proximal_logprobs, proximal
    )
    report = StepReport(version=4, metrics={}, seconds={})
    assert protocol.decode_report(over_the_wire(protocol.encode_report(report))).proximal_logprobs is None
