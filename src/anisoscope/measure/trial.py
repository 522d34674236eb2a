"""Verify a capture on the first batch: run the model without it too, and compare the outputs."""

from collections.abc import Callable
from typing import Any

from anisoscope.capture import Tap
from anisoscope.capture.proof import OUTPUTS, Outputs, Proof, copy_inputs
from anisoscope.errors import AnisoscopeError
from anisoscope.measure.random_state import fork_random_state
from anisoscope.models.devices import is_out_of_memory
from anisoscope.models.modes import is_compiled

EXACT = 0.0
"""How far outputs may move, if the model is not compiled and attention is its own: not at all."""


class MovedError(Exception):
    """Raised if the capture changes the outputs of a model or makes it fail; `why` says which."""

    def __init__(self, proof: Proof, why: str) -> None:
        """Keep what the comparison showed (`proof`) and the reason in words (`why`)."""
        super().__init__(why)
        self.proof = proof
        self.why = why


class Trial:
    """Runs the first forward call of a pass with and without the capture; `proof` is the result.

    `gives_up`: raise MovedError if the capture changes the outputs, so that the caller can capture less; otherwise the
    change is only noted. `skipped`: why the run without the capture is skipped, if it is.
    """

    def __init__(self, tap: Tap, *, gives_up: bool, skipped: str = "") -> None:
        """Prepare to verify the capture `tap`; nothing runs before the trial is called.

        gives_up   raise MovedError if the capture changes the outputs
        skipped    why the outputs are not compared; empty: they are
        """
        self.tap = tap
        self.gives_up = gives_up
        self.proof: Proof | None = None
        self._skipped = skipped

    def __call__(self, run: Callable[..., Any], inputs: dict[str, Any]) -> None:
        """Run the model on a batch without the capture, then with it, and compare the outputs.

        MovedError if they differ and `gives_up` is set.
        """
        self.proof = proof = Proof(skipped=self._skipped)
        plain = None
        untouched: dict[str, Any] = {}
        if not self._skipped:
            # The run with the capture may change the inputs in place, and one more run
            # may follow it.
            untouched = copy_inputs(inputs)
            plain = self._run_plain(run, inputs)
        # While it is set, the capture compares each layer's attention with the model's
        # own.
        self.tap.proof = proof
        try:
            output = run(**inputs)
        except Exception as error:
            if (
                isinstance(error, AnisoscopeError)
                or self.tap.receiver_failed
                or is_out_of_memory(error)
            ):
                raise
            # Without a run that succeeded there is no sign that the capture is to
            # blame.
            if plain is None or not self.gives_up:
                raise
            why = f"the model ends with {type(error).__name__} within the capture, and without it does not"
            raise MovedError(proof, why) from error
        finally:
            self.tap.proof = None
        if plain is not None:
            self._compare(proof, plain, Outputs(output), run, untouched)

    def _run_plain(self, run: Callable[..., Any], inputs: dict[str, Any]) -> Outputs:
        """Run the model without the capture; the random state is restored afterwards."""
        with (
            self.tap.detach(),
            fork_random_state({x.device for x in self.tap.model.parameters()}),
        ):
            # A copy: models may change their inputs in place (caches, masks), and the
            # second run needs them as they were.
            return Outputs(run(**copy_inputs(inputs)))

    def _compare(
        self,
        proof: Proof,
        plain: Outputs,
        inside: Outputs,
        run: Callable[..., Any],
        inputs: dict[str, Any],
    ) -> None:
        """Write into `proof` how far the outputs with the capture (`inside`) differ from those without it (`plain`).

        If they differ, the model (`run`) is called once more without the capture: two such calls differ by noise alone.
        MovedError if the capture changes the outputs by more than that, and `gives_up` is set.
        """
        proof.outputs = plain.measure_difference(inside)
        proof.limit = OUTPUTS[plain.dtype] if self._may_round() else EXACT
        # Does the model itself give the same numbers twice? Some kernels of a GPU do not.
        if proof.outputs > proof.limit:
            proof.noise = plain.measure_difference(self._run_plain(run, inputs))
        if proof.moved and self.gives_up:
            raise MovedError(
                proof,
                f"the capture moves the outputs by {proof.outputs:.1e} of the largest",
            )

    def _may_round(self) -> bool:
        """Return whether the model is compiled or its attention fused, so that the capture may change outputs by
        rounding.
        """
        return is_compiled(self.tap.model) or self.tap.fused
