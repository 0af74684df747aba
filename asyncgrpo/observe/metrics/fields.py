"""Fields of a step record, one line of metrics.jsonl.

Flat: a field that has one value per label is called `name/label`. Names follow the families under /metrics where both
tell the same thing.
"""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["LEARNER_FIELDS", "REPORTED_AS", "STEP_FIELDS", "StepRecord", "labels_of"]

StepRecord = Mapping[str, float | int | str | None]

LEARNER_FIELDS: Mapping[str, str] = {
    "loss": "loss, averaged over the step's optimiser updates",
    "gradient_norm": "global gradient norm before clipping, averaged over the step's updates",
    "learning_rate": "learning rate of the step's last update",
    "optimiser_updates": "optimiser updates inside the step",
    "optimiser_updates_skipped": "of the step, those not made because loss or gradient was not finite",
    "policy_entropy_nats": "entropy of the current policy per token",
    "policy_kl_nats/behaviour_proximal": "KL of behaviour from proximal policy per token: engine mismatch, staleness",
    "policy_kl_nats/behaviour_current": "KL of behaviour from current policy per token",
    "policy_kl_nats/proximal_current": "KL of proximal from current policy per token: what the step's updates changed",
    "policy_kl_nats/current_reference": "KL of current from reference policy per token; absent without a reference",
    "importance_weight_mean": "mean weight proximal/behaviour of a token, before its cap",
    "importance_weight_max": "largest of them",
    "importance_weight_capped_ratio": "share of tokens whose weight was moved to a bound",
    "importance_weight_effective_ratio": "effective sample size of these weights, as a share of tokens",
    "behaviour_ratio_mean": "mean ratio current/behaviour of a token",
    "behaviour_ratio_max": "largest of them",
    "behaviour_ratio_effective_ratio": "effective sample size of these ratios, as a share of tokens",
    "behaviour_ratio_second_moment": "mean square of their logarithm",
    "clipped_tokens_ratio/low": "share of tokens whose gradient the lower clip removed",
    "clipped_tokens_ratio/high": "share of tokens whose gradient the upper clip removed",
    "masked_tokens_ratio/gate": "share of tokens without a gradient because of the gate, the clipped among them",
    "masked_tokens_ratio/correction": "share of tokens that the importance sampling correction rejected; with "
    "objective.gate=vespo they make their whole sample fade",
    "masked_tokens_ratio/off_policy": "share of tokens in samples left out by objective.off_policy_mask_threshold",
    "masked_tokens_ratio/entropy": "share of tokens left out by objective.top_entropy_quantile",
}
"""What is recorded of a StepReport under a name of its own; anything else it holds becomes `learner/<name>`."""

REPORTED_AS: Mapping[str, str] = {
    "loss": "loss",
    "grad_norm": "gradient_norm",
    "learning_rate": "learning_rate",
    "optimiser/updates": "optimiser_updates",
    "optimiser/nonfinite_updates": "optimiser_updates_skipped",
    "entropy": "policy_entropy_nats",
    "kl/behaviour_proximal_k3": "policy_kl_nats/behaviour_proximal",
    "kl/behaviour_current_k3": "policy_kl_nats/behaviour_current",
    "kl/proximal_current_k3": "policy_kl_nats/proximal_current",
    "kl/current_reference_k3": "policy_kl_nats/current_reference",
    "importance_weight/mean": "importance_weight_mean",
    "importance_weight/max": "importance_weight_max",
    "importance_weight/truncated_fraction": "importance_weight_capped_ratio",
    "importance_weight/ess": "importance_weight_effective_ratio",
    "behaviour_ratio/mean": "behaviour_ratio_mean",
    "behaviour_ratio/max": "behaviour_ratio_max",
    "behaviour_ratio/ess": "behaviour_ratio_effective_ratio",
    "behaviour_ratio/second_moment": "behaviour_ratio_second_moment",
    "clip/low_fraction": "clipped_tokens_ratio/low",
    "clip/high_fraction": "clipped_tokens_ratio/high",
    "masked/gate_fraction": "masked_tokens_ratio/gate",
    "masked/correction_fraction": "masked_tokens_ratio/correction",
    "masked/off_policy_fraction": "masked_tokens_ratio/off_policy",
    "masked/entropy_fraction": "masked_tokens_ratio/entropy",
}
"""The learner's names of LEARNER_FIELDS. Of a divergence's estimates the one that is never negative is taken."""

STEP_FIELDS: Mapping[str, str] = {
    "step": "number of the step, from 1; the policy version after it",
    "version": "policy version the learner had while it trained the step",
    "time": "end of the step, seconds since 1970",
    "groups": "fresh groups trained; the fields of rewards, lengths and staleness are about these",
    "samples": "their samples",
    "samples_unscored": "of them, samples to which no reward function applied",
    "reward_mean": "mean reward of the scored samples",
    "reward_stddev": "their standard deviation (n - 1)",
    "reward_standard_error": "standard error of reward_mean, with groups as the independent units",
    "reward_mean/<function>": "mean of one reward function where it applied, unweighted",
    "reward_stddev/<function>": "its standard deviation (n - 1)",
    "dataset_groups/<dataset>": "of a mix (data.mix), the groups of one dataset; absent without any in the step",
    "dataset_reward_mean/<dataset>": "mean reward of their scored samples",
    "reward_metric/<name>": "mean of what reward functions logged under a name (log_metric) for the trained groups",
    "reward_failures/<function>/<reason>": "rewards of a group or a sample that a function failed to give since the "
    "step before: `late`, `raised`, or no usable `value`",
    "uniform_groups_ratio": "share of groups in which no two scored samples differ: no gradient",
    "completion_tokens_mean": "tokens of a completion, those between its turns (which nobody sampled) included",
    "completion_tokens_min": "of the shortest",
    "completion_tokens_max": "of the longest",
    "truncated_ratio": "share of completions that a limit cut short, of tokens or of turns",
    "staleness_mean": "learner's version - version that sampled the token, over sampled tokens",
    "staleness_max": "the largest",
    "staleness_tokens/<versions>": "tokens trained at that staleness",
    "mixed_version_samples_ratio": "share of samples whose tokens come from more than one policy version",
    "group_seconds_mean": "seconds from a group's admission until it entered the buffer",
    "group_seconds_max": "of the slowest",
    "tokens_trained": "tokens that engines sampled, in the fresh groups trained",
    "tokens_generated": "tokens the engines sampled during the step; null if one did not say",
    "tokens_generated_while_training": "of them, while the learner was training",
    "generated_while_training_ratio": "share of tokens_generated produced while the learner was training",
    "generated_tokens_per_second": "tokens_generated over step_seconds",
    "trained_tokens_per_second": "tokens_trained over step_seconds",
    "step_seconds": "wall-clock from the end of the previous step to the end of this one",
    "waiting_seconds": "of them, the learner waited for groups",
    "training_seconds": "of them, the learner trained",
    "snapshot_seconds": "of them, the learner wrote a snapshot",
    "publish_seconds": "seconds the latest finished publish took until its version was on every engine; 0 before one",
    "generation_idle_seconds": "seconds of the step in which no group was in flight, for want of a free slot",
    "waiting_ratio": "waiting_seconds over step_seconds",
    "generation_idle_ratio": "generation_idle_seconds over step_seconds",
    "verdict": "what limits the run: generation-bound, training-bound or balanced",
    "buffer_groups": "groups waiting in the buffer when the step took its own",
    "groups_admitted": "groups admitted since the run started",
    "groups_dropped/<reason>": "groups dropped since the run started, by reason",
    "groups_reissued/<reason>": "groups dropped whose prompt comes again, since the run started, by reason",
    "quarantined_prompts": "rows of the dataset given up since the run started, after generation.max_prompt_failures",
    "prompts_too_long": "rows of the dataset left out, since their prompt has more tokens than the run takes",
    "prompts_shortened": "rows of the dataset whose prompt lost its beginning for that (data.long_prompts: keep_tail)",
    "curriculum_prompts/<where>": "with curriculum.kind=pass_rate, rows visited so far: those whose pass rate is "
    "`within` low to high, those `outside`, and `retired` ones",
    "trained_less_generated/<of>": "mean over trained groups less mean over all that finished, so far: `tokens` of a "
    "sample, `reward`; not near 0, training sees other completions than the policy generates",
    "trained_less_generated_error/<of>": "its standard error, groups as the independent units",
    "reuse_mean": "effective reuse: optimiser passes over tokens so far, over distinct tokens trained so far",
    "replayed_groups": "groups trained that had been trained before",
    "replayed_tokens": "their trained tokens",
    "replay_age_mean": "learner's version - version that sampled the token, over replayed tokens",
    "replay_age_max": "the largest; 0 without any",
    "replay_uses_mean": "steps that trained a replayed group so far, this one included",
    "replay_groups": "groups kept for replay, after the step",
    "learner_seconds/<part>": "wall-clock inside the learner, by part of the step",
    "learner_memory_bytes/<kind>": "memory of the learner's rank that holds most: `resident` of its process after the "
    "step; on CUDA the step's peaks, `allocated` for tensors and `reserved` of the device for them",
    "learner/<name>": "anything else the learner reports",
    "learner/staleness_<k>/<name>": "a metric of the tokens trained at staleness k, under the learner's name",
    **LEARNER_FIELDS,
}
"""Every field of a step record and its meaning; `<…>` stands for a label."""


def labels_of(record: Mapping[str, object], name: str) -> list[str]:
    """Labels of the fields `name/label` in a record, in order."""
    return [field.partition("/")[2] for field in record if field.startswith(f"{name}/")]
