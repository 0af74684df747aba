"""Asynchronous GRPO: vLLM keeps generating while the model trains."""
