from asyncgrpo.learning.rank import inline_device, torch_device


def test_a_ranks_own_process_counts_no_gpus_and_an_inline_learner_does() -> None:
    assert (torch_device("cuda:1"), torch_device("cpu:0-3")) == ("cuda", "cpu")
    assert (inline_device("cuda:1"), inline_device("cuda"), inline_device("cpu:0-3")) == ("cuda:1", "cuda", "cpu")
