"""What a run leaves behind and shows while it goes: its folder, metrics, rollouts, progress, logs and summary.

Imports nothing above `config`: stages and orchestrator hand their facts down to it.
"""
