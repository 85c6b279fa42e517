"""A training step that all ranks agree on afterwards: it was good, and whether to go on."""

from collections.abc import Callable
from typing import Any

from titan_integration.data.dataloader import OdbDataLoader, TitanBatch
from titan_integration.errors import UserError
from titan_integration.process_groups import all_max, on_rank_zero
from titan_integration.run.failures import is_out_of_memory
from titan_integration.run.guard import Guard
from titan_integration.training.health import Health, Memory, not_finite
from titan_integration.upstream import LOSS_NOT_FINITE, watch_grad_norm


class SafeSteps:
    """Runs steps, and turns what ends them badly into an error that says what to do.

    Args:
        guard: Of the run.
        config: Of the run; validation is put off in it when the run is to stop.
        odb: The loader of the training rows; None for torchtitan's own.
    """

    def __init__(self, guard: Guard, config: Any, odb: OdbDataLoader | None) -> None:
        self._guard, self._config, self._odb = guard, config, odb
        self.health, self._memory = Health(), Memory()
        watch_grad_norm(self.health.note_norm)

    def run(self, step: Callable[[], None], drawn: list[TitanBatch]) -> None:
        """Run torchtitan's step on batches that were drawn for it, on all ranks.

        Args:
            step: Runs it.
            drawn: The batches; empty where the step draws its own.
        Raises:
            UserError: No memory was left, or a value was not finite.
        """
        bad = False
        try:
            step()
        except RuntimeError as error:
            if is_out_of_memory(error) and drawn:
                budget = self._config.data.odb.token_budget
                raise self._memory.explain(error, drawn, budget) from error
            bad = str(error).startswith(LOSS_NOT_FINITE)  # on all ranks alike
            if not bad:
                raise
        if self._guard.end_step(bad or self.health.end_step()):
            raise self._not_finite()
        if drawn:
            self._memory.note(drawn)
        if self._guard.stopped:
            self._config.validator.enable = False  # it may take longer than there is time

    def before_save(self) -> None:
        """What is not finite, or of data that is gone, must not become the newest checkpoint."""
        if all_max([int(self.health.is_bad_now())], self._guard.group)[0]:
            raise self._not_finite()
        inputs = self._odb.inputs if self._odb is not None else None
        if inputs is not None:
            on_rank_zero(inputs.look_at_files, self._guard.group)

    def _not_finite(self) -> UserError:
        return not_finite(self.health, self._odb, self._guard.group, self._config.dump_folder)
