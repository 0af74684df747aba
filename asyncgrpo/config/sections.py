"""The sections of a run's configuration, one class each. A field's docstring is its `--help` and its documentation.

Field names are unique over all sections (but for those named in `names.py`), so that the flat Python class and the
sections in YAML are one thing with one mapping.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, field_serializer

from asyncgrpo.config.data import DataSection as DataSection
from asyncgrpo.config.objective import ObjectiveSection as ObjectiveSection
from asyncgrpo.config.rewards import LARGEST_WEIGHT as LARGEST_WEIGHT
from asyncgrpo.config.rewards import MAX_CALLS as MAX_CALLS
from asyncgrpo.config.rewards import OnRewardError as OnRewardError
from asyncgrpo.config.rewards import RewardSection as RewardSection
from asyncgrpo.config.secrets import masked_url
from asyncgrpo.config.section import AtLeastTiny, Fraction, PathText
from asyncgrpo.config.section import Section as Section
from asyncgrpo.types import InFlight

Seconds = PositiveFloat
Tracker = Literal["tensorboard", "trackio", "wandb"]
LARGEST_SEED = 2**31 - 1
"""vLLM hands it to NumPy, which takes 32 bits; engine k gets the seed + k."""
TokenId = Annotated[int, Field(ge=0, lt=2**31)]
Decay = Annotated[float, Field(ge=0.0, lt=1.0)]


class RunSection(Section):
    output_dir: Annotated[PathText, Field(min_length=1)] = "runs/run"
    """Folder of this run: configuration, metrics, rollouts, logs, checkpoints, final model."""
    resume: Literal["allow", "must", "never"] = "allow"
    """Go on from the checkpoint in output_dir if there is one, and begin anew if the run there was cut off before its
    first (`allow`); or refuse a folder without one (`must`), or with anything in it (`never`)."""
    allow_changes: bool = False
    """Resume although settings that change what is trained are other than the checkpoint's."""
    seed: Annotated[int, Field(ge=0, le=LARGEST_SEED)] = 42
    """Seeds prompt order, learner and engines."""
    plan_from: PathText | None = None
    """Folder of an earlier run with this model and task on this machine: from its pace, this run is predicted as it
    starts. Absent: only from its own first steps."""


class ModelSection(Section):
    path: PathText = ""
    """Folder in Hugging Face format, or a name on the hub; or the folder of a LoRA adapter on such a model."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Type of the trained weights (the optimiser's master copy)."""
    load_in_4bit: bool = False
    """Hold the base model of LoRA adapters in four bits (NF4, needs bitsandbytes). Engines get the rounded weights."""
    attn_implementation: str = "packed"
    """`packed`: ours, no padding and each prompt once, where the model allows. Or transformers' name: padded rows."""
    trust_remote_code: bool = False
    """Run Python code that the model folder brings along."""


class LoraSection(Section):
    lora_r: Annotated[int, Field(ge=0, le=65536)] = 0
    """Rank of the adapters; 0 trains all weights, or is that of lora_adapter."""
    lora_alpha: PositiveInt = 32
    """Scale: adapters are multiplied by lora_alpha / lora_r."""
    lora_dropout: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.0
    """Dropout before an adapter, in backward passes. Learner and engine then disagree, and anchors cost a pass more."""
    lora_target_modules: tuple[str, ...] | str = "all-linear"
    """Modules that get an adapter, as peft names them."""
    lora_modules_to_save: tuple[str, ...] = ()
    """Modules that are trained whole beside the adapters, as `lm_head`; not one end of embeddings tied to the head."""
    lora_adapter: PathText | None = None
    """Folder of a LoRA adapter, as peft saves it, to go on training: rank, scale and modules are then its own. The same
    as naming it as model.path, where its base model lies elsewhere than it says."""


class GenerationSection(Section):
    num_generations: Annotated[int, Field(ge=2, le=4096)] = 8
    """Samples per prompt (the group size). At least 2: an advantage needs a comparison."""
    max_completion_length: PositiveInt = 256
    """Most tokens a completion may have."""
    temperature: Annotated[float, Field(gt=0.0, le=2.0)] = 1.0
    """Sampling temperature, applied by engines and learner alike: 0.01 to 2, as vLLM takes it."""
    top_p: float = 1.0
    """Only 1.0: truncated sampling needs a correction that this version does not have."""
    top_k: int = 0
    """Only 0 (off), for the same reason."""
    min_p: float = 0.0
    """Only 0.0 (off), for the same reason."""
    stop_token_ids: tuple[TokenId, ...] = ()
    """Further tokens that end a completion, besides the model's own end tokens."""
    request_timeout: Seconds = 300.0
    """Seconds one completion may take."""
    max_attempts: PositiveInt = 3
    """Tries per completion while an engine is unavailable."""
    group_timeout: Seconds = 900.0
    """Seconds a group may take from its first request to its last completion; then it has failed."""
    num_extra_generations: Annotated[int, Field(ge=0, le=4096)] = 0
    """Samples asked for beyond num_generations; once enough have finished, the rest are cut. Favours short ones."""
    drop_sample: bool = False
    """A sample that fails is left out, as long as 2 of its group are there. Otherwise its whole group is dropped."""
    max_prompt_failures: PositiveInt = 3
    """Groups of one prompt that may fail by its fault until it is quarantined: named, counted, never tried again."""
    max_failed_groups: PositiveInt = 8
    """Groups that may fail one after the other, by engines or by rewards, before the run ends; fewer are dropped. Those
    of one prompt that is itself to blame count as one."""


class EnginesSection(Section):
    urls: tuple[str, ...] = ()
    """Engines that already run, by base URL, as http://host:8000; those of `devices` are started beside them."""
    api_key_env: str | None = None
    """Environment variable with the key that engines want (vLLM's --api-key). Managed ones get it, too."""
    devices: tuple[str, ...] = ("auto",)
    """One managed engine per entry: `cuda:0`, `cuda:0,1` (tensor parallel), `cpu:0-3`, `cpu`, `cpu:auto` or `auto`.
    Left at `[auto]` beside `urls`: none."""
    port: Annotated[int, Field(ge=0, le=65535)] = 0
    """Port of the first managed engine, further ones count up. 0 picks free ports."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Type the engine computes in. auto: bfloat16 where hardware multiplies it, else float32; running ones tell."""
    max_model_len: PositiveInt | None = None
    """Longest prompt + completion. Absent: data.max_prompt_length + max_completion_length, or what the model has."""
    max_num_seqs: PositiveInt | None = None
    """Completions one engine computes at once. Absent: vLLM's own default."""
    gpu_memory_utilization: Fraction = 0.9
    """Share of a GPU's memory for an engine."""
    cpu_kv_cache_gib: PositiveInt = 2
    """Memory for the KV cache of an engine on CPU, GiB."""
    enforce_eager: bool = False
    """Skip compilation: starts faster, generates slower."""
    max_concurrent_requests: PositiveInt | Literal["adaptive", "unlimited"] = "adaptive"
    """Most open requests of one engine. `adaptive`: few enough that its KV cache does not overflow, no fewer."""
    health_interval: Seconds = 2.0
    """Seconds between two looks at an engine: is it well, how long is its queue, how full its KV cache."""
    max_restarts: NonNegativeInt = 5
    """Times a managed engine is started anew after it ended or hung; then the run goes on without it."""
    extra_args: tuple[str, ...] = ()
    """Further arguments of the vLLM server, word by word."""
    startup_timeout: Seconds = 600.0
    """Seconds a managed engine may take until it is healthy; a running one that failed is waited for as long."""
    control_timeout: Seconds = 60.0
    """Seconds one control call (health, pause, resume) may take."""
    stop_timeout: Seconds = 20.0
    """Seconds an engine gets to stop before it is killed."""

    @field_serializer("urls", when_used="json")
    def _without_logins(self, urls: tuple[str, ...]) -> list[str]:
        """What is written down holds no secrets."""
        return [masked_url(url) for url in urls]

    @property
    def managed_devices(self) -> tuple[str, ...]:
        """Those of the engines that we start."""
        return () if self.urls and self.devices == ("auto",) else self.devices


class BufferSection(Section):
    max_staleness: NonNegativeInt = 1
    """S: most versions by which a trained token may trail the learner. 0 is synchronous training."""
    max_unfinished_groups: PositiveInt | None = None
    """W: most groups in flight or waiting in the buffer. Lowers mean staleness. Absent: (S + 1) x groups_per_step."""
    over_stale: Literal["wait", "drop", "drop_reissue", "mask"] = "wait"
    """A group about to exceed S: the step waits for it (`wait`); it is dropped and replaced, by another prompt (`drop`)
    or by the same one (`drop_reissue`); or its over-stale tokens are left out of the loss (`mask`)."""
    filter_uniform_groups: bool = False
    """Drop groups in which all rewards are equal, and generate others in their place (dynamic sampling). For baselines
    within the group: with others such groups have advantages."""
    refill_budget: NonNegativeFloat = 2.0
    """Most uniform groups dropped per step, in multiples of groups_per_step; those beyond are trained."""
    stall_timeout: Seconds = 1800.0
    """Seconds a step may wait for groups before the run ends with an error."""


class ReplaySection(Section):
    replay_fraction: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.0
    """Share of a step's groups that were trained before. 0: no replay."""
    replay_capacity: PositiveInt = 256
    """Most groups kept for replay; beyond, the oldest go."""
    replay_max_age: PositiveInt = 8
    """Most versions between the step and a replayed group's oldest token."""
    replay_max_uses: Annotated[int, Field(ge=2)] = 4
    """Steps that may train a group, the first included."""
    replay_sampling: Literal["recency", "uniform", "advantage", "reward_variance"] = "uniform"
    """Which groups come again: the newest, any, those of large |advantage|, or of much variance in reward."""
    replay_exponent: NonNegativeFloat = 0.5
    """Power of the priority that `advantage` and `reward_variance` draw by; 0 is uniform."""
    replay_correction: Fraction = 1.0
    """How much of the bias of drawing by priority the samples' weights take away; 1 is all of it."""
    replay_advantages: Literal["frozen", "importance_baseline", "pooled"] = "frozen"
    """Of a replayed group: as they were (`frozen`), its baseline weighted by what the policy has become
    (`importance_baseline`), or anew together with fresh samples of the same prompt (`pooled`)."""


class TrainingSection(Section):
    max_steps: Annotated[int, Field(le=10**9)] = -1
    """Steps to train. -1: as many as num_train_epochs gives."""
    num_train_epochs: Annotated[float, Field(gt=0.0, le=1e6)] = 1.0
    """Passes over the dataset, when max_steps is -1."""
    groups_per_step: Annotated[int, Field(gt=0, le=65536)] = 8
    """P: prompts consumed by one step."""
    num_iterations: Annotated[int, Field(gt=0, le=65536)] = 1
    """Passes over a step's samples."""
    num_minibatches: PositiveInt = 1
    """Optimiser updates per pass."""
    learning_rate: PositiveFloat = 1e-6
    """Peak learning rate of AdamW."""
    weight_decay: NonNegativeFloat = 0.0
    """AdamW's weight decay."""
    adam_beta1: Decay = 0.9
    """AdamW's beta1."""
    adam_beta2: Decay = 0.999
    """AdamW's beta2."""
    adam_epsilon: AtLeastTiny = 1e-8
    """AdamW's epsilon."""
    lr_scheduler_type: Literal[
        "constant", "constant_with_warmup", "linear", "cosine", "cosine_with_restarts", "polynomial", "inverse_sqrt"
    ] = "constant"
    """Schedule, as transformers names it."""
    warmup_steps: NonNegativeInt = 0
    """Optimiser updates until the peak learning rate; fewer than the run has, and not with `constant`."""
    max_grad_norm: AtLeastTiny = 1.0
    """Gradients are clipped to this global norm."""
    max_skipped_updates: NonNegativeInt = 3
    """Updates in a row that are skipped because loss or gradient is not finite; one more ends the run. 0: the first."""
    bf16: bool = False
    """Compute in bfloat16 (autocast); weights keep model.dtype."""
    cast_lm_head_to_fp32: bool = False
    """Multiply the output head in float32, in learner and engines, whatever the type of the rest."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass: less memory, slower."""


class LearnerSection(Section):
    mode: Literal["process", "inline"] = "process"
    """`process`: one process per device. `inline`: in the orchestrator, for debugging and tests."""
    devices: tuple[str, ...] = ("auto",)
    """One rank per entry: `cuda:1`, `cpu:4-7` (cores), `cpu`, `cpu:auto` (half of the cores) or `auto`."""
    token_budget: PositiveInt = 4096
    """Most tokens that one forward and backward pass computes on one rank: it bounds memory, never changes the loss."""
    start_timeout: Seconds = 600.0
    """Seconds the learner may take to load the model."""
    step_timeout: Seconds = 3600.0
    """Seconds one step may take."""
    max_restarts: NonNegativeInt = 3
    """Times that a learner whose process died is started anew from the last checkpoint, until a later one is saved."""


class WeightsSection(Section):
    transport: Literal["shared_memory", "nccl", "lora"] = "shared_memory"
    """How weights reach engines: by a file in memory on one host; by `nccl` between GPUs (never run so far); or only
    adapters, which engines swap without a pause, while requests end on the one that they began with (`lora`)."""
    shared_memory_dir: PathText = "/dev/shm"
    """Where snapshots and adapters lie; must be visible to the engines."""
    in_flight: InFlight = "keep"
    """Completions under way when a version is published: go on, KV cache computed anew (`keep`); are cut and go on as
    new requests (`abort_resume`); or end on the old weights while the publish waits (`finish`). With transport `lora`
    they always end on the old ones, and nothing waits."""
    publish_interval: PositiveInt = 1
    """Publish every so many steps; more than 1 needs buffer.max_staleness of at least one less."""
    publish_timeout: Seconds = 300.0
    """Seconds a publish to one engine may take."""
    publish_concurrency: PositiveInt = 1
    """Engines that load a version at the same time; the others go on generating."""
    probe: bool = True
    """Before training, publish perturbed weights and then version 0, and compare log-probabilities both times."""
    probe_tolerance: PositiveFloat | None = None
    """Largest mean |difference| of log-probabilities, nats per token. Absent: 0.01 for a float32 engine, else 0.15."""


class CheckpointSection(Section):
    save_steps: NonNegativeInt = 0
    """Save a checkpoint every so many steps. 0: not by steps."""
    save_minutes: NonNegativeFloat = 30.0
    """Save one after the first step that ends so many minutes after the last: most that a crash can cost. 0: never."""
    save_total_limit: PositiveInt | None = 2
    """Checkpoints that are kept, the newest. While one is written there is one more. Absent: all."""
    keep_every: PositiveInt | None = None
    """Save every so many steps as well, and keep those for ever. Absent: none are."""
    save_timeout: Seconds = 1800.0
    """Seconds that the learner's part of a checkpoint may take, and the rest as well; then it is given up, and earlier
    ones stay. A rank that has not answered by then is started anew from one of them,
    once from each; where it cannot be, it gets the time of the next call to answer."""

    @property
    def is_on(self) -> bool:
        """Whether any setting asks for checkpoints at all."""
        return bool(self.save_steps or self.keep_every or self.save_minutes)


class ObserveSection(Section):
    metrics_host: str = "127.0.0.1"
    """Address of /metrics and of the page. Elsewhere than on loopback, others can read what is served there."""
    metrics_token_env: str | None = None
    """Environment variable with the token that both then want, as a bearer's or once as `/?token=TOKEN`."""
    metrics_port: Annotated[int, Field(ge=-1, le=65535)] = 0
    """Port of both. 0 picks a free one, -1 turns them off."""
    targets_dir: str | None = None
    """Folder for a file by which Prometheus finds the run and its engines, while it lives. Absent: none is written."""
    save_rollouts: bool = True
    """Write every sample to rollouts/*.parquet."""
    rollouts_keep_steps: PositiveInt | None = None
    """Rollout files of so many steps stay, the newest; those since the last checkpoint in any case. Absent: all."""
    rollouts_max_gib: PositiveFloat | None = None
    """Most that rollout files take, GiB: the oldest go; those since the last checkpoint stay. Absent: any amount."""
    trackers: tuple[Tracker, ...] = ()
    """Where every step's numbers go besides: `tensorboard`, `trackio`, `wandb`, each an extra of its name."""
    project: Annotated[str, Field(min_length=1)] = "asyncgrpo"
    """Project that trackio and wandb file the run under."""
    run_name: str | None = None
    """Its name there. Absent: that of the folder run.output_dir."""
    tracker_timeout: Seconds = 60.0
    """Seconds a tracker may take for a step until it is said, and all of them at the end; none ever holds up a step."""
    write_timeout: Seconds = 600.0
    """Seconds that writing what a step did may take, or reading it for `asyncgrpo replay` or a prediction; a disk that
    hangs for longer ends the run, or the replay; the prediction is left out."""
    stall_report_seconds: Seconds = 600.0
    """Seconds without a step, a group or a publish after which it is said what is waited for; half of
    buffer.stall_timeout, if that is less. Ends nothing."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Level of logs/orchestrator.log."""
    log_format: Literal["text", "json"] = "text"
    """Of logs/orchestrator.log: lines to read, or an object of JSON each, with run, step and version."""
    webhook_env: str | None = None
    """Environment variable with a URL that is told, as JSON, how the run ended: finished, interrupted or failed."""
