"""Try the first batch of a pass without the capture too: does the model compute the same, and what is handed on?"""

from collections.abc import Callable
from typing import Any

import torch

from anisoscope.capture import Tap
from anisoscope.capture.proof import OUTPUTS, Outputs, Proof, copy_inputs
from anisoscope.errors import AnisoscopeError
from anisoscope.models.devices import is_out_of_memory

EXACT = 0.0
"""How far outputs may move, if the model is not compiled and attention is its own: not at all."""


class MovedError(Exception):
    """The outputs of a model change within a capture, or it fails there; `why` says which."""

    def __init__(self, proof: Proof, why: str) -> None:
        super().__init__(why)
        self.proof, self.why = proof, why


class Trial:
    """The first call of a pass; `proof` is its result.

    `gives_up`: whether to raise MovedError if the capture moves the outputs, so that less can be captured; else that is
    noted alone.
    """

    def __init__(self, tap: Tap, *, gives_up: bool, skipped: str = "") -> None:
        self.tap, self.gives_up = tap, gives_up
        self.proof: Proof | None = None
        self._skipped = skipped

    def __call__(self, run: Callable[..., Any], inputs: dict[str, Any]) -> None:
        """Run the model, without the capture before."""
        self.proof = proof = Proof(skipped=self._skipped)
        plain = None if self._skipped else self._run_plain(run, inputs)
        self.tap.proof = proof
        try:
            output = run(**inputs)
        except Exception as error:
            if isinstance(error, AnisoscopeError) or self.tap.receiver_failed or is_out_of_memory(error):
                raise
            if plain is None or not self.gives_up:
                raise
            why = f"the model ends with {type(error).__name__} within the capture, and without it does not"
            raise MovedError(proof, why) from error
        finally:
            self.tap.proof = None
        if plain is not None:
            self._compare(proof, plain, Outputs(output), run, inputs)

    def _run_plain(self, run: Callable[..., Any], inputs: dict[str, Any]) -> Outputs:
        """Run the model without the capture; random numbers are restored afterwards."""
        devices = sorted({x.device.index or 0 for x in self.tap.model.parameters() if x.device.type == "cuda"})
        with self.tap.detach(), torch.random.fork_rng(devices):
            return Outputs(run(**copy_inputs(inputs)))

    def _compare(
        self, proof: Proof, plain: Outputs, inside: Outputs, run: Callable[..., Any], inputs: dict[str, Any]
    ) -> None:
        proof.outputs = plain.apart_from(inside)
        proof.limit = OUTPUTS[plain.dtype] if self._may_round() else EXACT
        if proof.outputs > proof.limit:  # does the model give the same twice?
            proof.noise = plain.apart_from(self._run_plain(run, inputs))
        if proof.moved and self.gives_up:
            raise MovedError(proof, f"the capture moves the outputs by {proof.outputs:.1e} of the largest")

    def _may_round(self) -> bool:
        """Tell whether the capture computes operations in another order, so that results may round differently."""
        compiled = any(
            module._compiled_call_impl is not None or type(module).__name__ == "OptimizedModule"
            for module in self.tap.model.modules()
        )
        return compiled or self.tap.fused
