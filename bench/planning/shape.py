"""What a step of an engine costs: from a model's shape, a machine's bandwidth and its arithmetic.

A step reads every weight once and each running request's keys and values, and works two operations for each
weight and token. The larger of the two times counts, and of the smaller as much as the machine cannot do
meanwhile. That is the roofline of Williams, Waterman and Patterson (2009), with what a step costs beside it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from service.budget.kv import kv_cost


@dataclass(frozen=True, slots=True)
class Model:
    """A dense transformer, as numbers of weights and bytes."""

    name: str
    layer_weights: int  # read in each step, and used for each token
    head_weights: int  # used only for tokens that are sampled
    embedding_weights: int  # kept, and not read as a whole
    kv_bytes_per_token: int
    attention_flops: int  # for one token and each position before it
    weight_bytes: float = 2

    @classmethod
    def of(cls, name: str, config: dict[str, Any], weight_bytes: float = 2) -> Model:
        """From a Hugging Face configuration of the Llama family: a gated feed-forward part, no experts.

        Raises:
            KeyError, ValueError: the configuration is of another kind.
        """
        hidden, layers, heads = (
            int(config[key]) for key in ("hidden_size", "num_hidden_layers", "num_attention_heads")
        )
        size = int(config.get("head_dim") or hidden // heads)
        kv_heads = int(config.get("num_key_value_heads") or heads)
        cost = kv_cost(config)
        if cost is None or config.get("num_experts") or config.get("num_local_experts"):
            raise ValueError(f"{name} is no dense model with attention in every layer")
        attention = 2 * hidden * heads * size + 2 * hidden * kv_heads * size
        head = int(config["vocab_size"]) * hidden
        return cls(
            name=name,
            layer_weights=layers * (attention + 3 * hidden * int(config["intermediate_size"])),
            head_weights=head,
            embedding_weights=0 if config.get("tie_word_embeddings") else head,
            kv_bytes_per_token=cost.bytes_per_token,
            attention_flops=4 * layers * heads * size,
            weight_bytes=weight_bytes,
        )

    @property
    def bytes(self) -> float:
        """All weights in memory."""
        return (self.layer_weights + self.head_weights + self.embedding_weights) * self.weight_bytes


@dataclass(frozen=True, slots=True)
class Machine:
    """What an engine runs on; rates are those that are reached, not those that are advertised."""

    name: str
    bytes_per_s: float
    flops_per_s: float
    memory_bytes: float
    overlap: float  # share of the smaller of two times that passes within the larger
    step_s: float = 0.0  # of each step, beside both
    sequence_s: float = 0.0  # of each running request in each step: sampling, detokenizing, bookkeeping
    memory_share: float = 0.9  # what the engine may take

    def slower(self, factor: float) -> Machine:
        """The same machine at another pace: 1.2 takes a fifth longer for everything."""
        return Machine(
            self.name,
            self.bytes_per_s / factor,
            self.flops_per_s / factor,
            self.memory_bytes,
            self.overlap,
            self.step_s * factor,
            self.sequence_s * factor,
            self.memory_share,
        )


@dataclass(frozen=True, slots=True)
class Engine:
    """A model on a machine, and how many requests it runs at once."""

    model: Model
    machine: Machine
    max_running: int = 256
    step_tokens: int = 8192  # of prompts, at most, in one step
    block_tokens: int = 16
    kv_tokens_limit: int | None = None

    @property
    def kv_tokens(self) -> int:
        """Positions that the cache holds. Negative where not even the weights fit."""
        room = self.machine.memory_bytes * self.machine.memory_share - self.model.bytes
        fits = int(room / self.model.kv_bytes_per_token)
        return min(fits, self.kv_tokens_limit) if self.kv_tokens_limit else fits

    def step_seconds(
        self, running: int, context: float, prompt: int = 0, before: float = 0, begun: int = 0
    ) -> float:
        """Of a step that decodes one token for each of `running` requests, which have `context` positions in
        all, and reads `prompt` tokens of new ones, each after `before` positions on average. `begun` of these
        are read to their end and get their first token, which is sampled like any other."""
        model, machine = self.model, self.machine
        sampled = running + begun
        flops: float = 2 * model.layer_weights * (running + prompt) + 2 * model.head_weights * max(sampled, 1)
        flops += model.attention_flops * (context + prompt * before)
        weights = (model.layer_weights + model.head_weights) * model.weight_bytes
        moved_s = (weights + model.kv_bytes_per_token * context) / machine.bytes_per_s
        worked_s = flops / machine.flops_per_s
        less = min(moved_s, worked_s) * (1 - machine.overlap)
        return machine.step_s + machine.sequence_s * sampled + max(moved_s, worked_s) + less
