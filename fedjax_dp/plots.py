"""Pictures of results."""

import os
import textwrap
from collections.abc import Sequence

import matplotlib

matplotlib.use("Agg", force=False)
import matplotlib.pyplot as plt
from matplotlib.ticker import MaxNLocator

from fedjax_dp.accounting import Guarantee
from fedjax_dp.simulation import Evaluation

TEST, PROBE = "#1f5fa8", "#b0643c"


def plot_run(history: Sequence[Evaluation], guarantee: Guarantee, title: str, path: str | os.PathLike) -> None:
    """Accuracy and loss against rounds, with the Guarantee underneath, as a PNG."""
    rounds = [point.round for point in history]
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 4.1), layout="constrained")
    marker = "o" if len(rounds) < 60 else None
    left.plot(rounds, [100 * point.test_accuracy for point in history], marker=marker, ms=3.5, color=TEST)
    left.set(title="test accuracy (%)", xlabel="round", ylim=(0, 100))
    last = history[-1]
    left.annotate(
        f"{100 * last.test_accuracy:.1f}%", (last.round, 100 * last.test_accuracy), xytext=(-6, -16),
        textcoords="offset points", ha="right", color=TEST, fontweight="bold",
    )  # fmt: skip
    right.plot(rounds, [point.test_loss for point in history], marker=marker, ms=3.5, color=TEST, label="test")
    right.plot(
        rounds, [point.train_loss for point in history], marker=marker, ms=3.5, color=PROBE, ls="--",
        label="cohort's batches (probe)",
    )  # fmt: skip
    right.set(title="cross-entropy (nats)", xlabel="round")
    right.set_ylim(bottom=0)
    right.legend(frameon=False)
    for axes in (left, right):
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle(title, fontsize=12)
    figure.supxlabel("\n".join(textwrap.wrap(str(guarantee), 118)), fontsize=8.5, color="0.25")
    figure.savefig(path, dpi=130)
    plt.close(figure)
