"""Options of runs: the groups that every run takes, and those of its algorithm."""

import dataclasses
import functools
from typing import Annotated, Any

from fedjax_dp import errors, own_code
from fedjax_dp.algorithms import CATALOGUE, Entry
from fedjax_dp.data.client_names import ClientNames
from fedjax_dp.data.loaders import DATASETS
from fedjax_dp.data.names import ASSIGNMENTS, CONCENTRATION_SCALES, REMAINDERS
from fedjax_dp.data.reading import NAMES, Reading
from fedjax_dp.experiments.partitions import PARTITIONS, SIZES
from fedjax_dp.numpy_streams import numpy_stream
from fedjax_dp.options import Option, Options, about, of_class
from fedjax_dp.privacy.terms import WITHOUT, PrivacyTerms, budgets_as_text
from fedjax_dp.tasks.names import APS, LOSSES

# Keys of `models.ARCHITECTURES`, which loads JAX, written out again so that help and files are read without it.
ARCHITECTURES = (
    *("logistic", "mlp", "cnn", "group_norm_cnn", "tutorial_cnn", "lenet", "simple_cnn"),
    *("lstm", "vit", "gpt", "word_lstm", "char_lstm"),
)
PRETRAINED = "pretrained"  # the scheme of a folder with a language model
DATASET_NAMES = tuple(f"{name}:{reader.suffix}" if reader.suffix else name for name, reader in DATASETS.items())
WIDTHS = ("float32", "bfloat16")
TRANSFORMERS = {"model": ("vit", "gpt")}  # the models whose sizes these are


@dataclasses.dataclass(frozen=True)
class PopulationConfig(Reading):
    """Everything that decides the clients and their records. None: the data set brings it, or it does not apply.

    Args:
        dataset: data set; your own files and folders follow a colon, such as csv:patients.csv
        data_dir: folder of the data sets
        seed: seed of everything random: partition, cohorts, batches, noise, first model
        num_clients: number of clients
        labels_per_client: labels of each client; for partitions labels and pathological
        assignment: which labels a client has; cyclic: i, i + 1, ...; first: i and random ones
        shards_per_client: shards of each client; for partition shards
        shard_size: records of a shard; all whole shards are dealt
        similarity: percent of records dealt at random; for partition similarity
        concentration: concentration of the Dirichlet partitions; a small one makes clients differ
        concentration_scale: scale of the concentration; hsu divides it by the number of classes
        balance: give no more records to clients that have an even share already; for class-dirichlet
        column: what partition continuous sorts by; target, target:J or the number of a feature
        column_strength: 0 is iid, 1 sorts by the column; for partition continuous
        group_size: natural clients that become one; for partition grouped-natural
        remainder: natural clients left over: a smaller client, spread over the others, dropped, or refused
        client_ids: who has which record; .npy or text: an id per training record; .json: lists of rows
        sizes: how many records each client has
        min_records: fewest records of a client; for sizes power-law and zipf; partition natural drops smaller clients,
            class-dirichlet draws again
        zipf_exponent: exponent of sizes zipf
        pca: principal components that replace the features; not private
        cosines: lowest cosine frequencies per side that replace an image; public, learns nothing
        normalise: public mean and deviation; features become (x - MEAN) / STD, before pca and cosines
        holdout: fraction of its records that each client keeps for testing; all records are pooled first; 0 keeps the
            test set
    """

    dataset: Annotated[str, about("", choices=DATASET_NAMES, open=True)] = "digits"
    data_dir: Annotated[str | None, about("", metavar="DIR", default="$FEDJAX_DP_DATA, else the user cache")] = None
    seed: int = 0
    num_clients: int | None = None
    partition: Annotated[str | None, about("how records are split over clients", choices=PARTITIONS)] = None
    labels_per_client: int | None = None
    assignment: Annotated[str | None, about("", choices=ASSIGNMENTS)] = None
    shards_per_client: int | None = None
    shard_size: Annotated[int | None, about("", default="what shards_per_client makes of all records")] = None
    similarity: float | None = None
    concentration: float | None = None
    concentration_scale: Annotated[str | None, about("", choices=CONCENTRATION_SCALES)] = None
    balance: bool | None = None
    column: Annotated[str | None, about("", metavar="COLUMN")] = None
    column_strength: float | None = None
    group_size: int | None = None
    remainder: Annotated[str | None, about("", choices=REMAINDERS)] = None
    client_ids: Annotated[str | None, about("", metavar="FILE")] = None
    sizes: Annotated[str | None, about("", choices=SIZES)] = None
    min_records: int | None = None
    zipf_exponent: float | None = None
    pca: int | None = None
    cosines: int | None = None
    normalise: Annotated[str | None, about("", metavar="MEAN,STD")] = None
    holdout: Annotated[float | None, about("", default="the test set")] = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingConfig:
    """How long, and what model.

    Args:
        rounds: number of rounds
        model: architecture, FILE.py:NAME or pretrained:FOLDER; the folder has config.json and safetensors of a language
            model
        pool: what of a text a pretrained model classifies; by default as it was trained: the first token, or the last
        hidden: widths of the hidden layers, such as 1200 or 64,32
        width: width of a transformer's vectors, a multiple of heads; hidden layers are 4 times as wide
        layers: blocks of the transformer
        heads: attention heads
        patch: pixels per side of the squares that an image is cut into
        loss: loss of a record; sequence: mean over its tokens or per length; multi_label: mean or sum over labels;
            regression: squared or huber
        dtype: width of gradients; clipping norms, clipped sums and noise stay float32
        trainable: what is trained: all, head, bias, lora, ffa-lora or patterns of parameter paths, with commas
        start: checkpoint to start from; .npz, .safetensors, a run folder or a checkpoint of orbax
        start_names: TOML file that maps parameter paths of the model to names in the checkpoint
        start_data: what the checkpoint was trained on; the Guarantee quotes it
        start_private: whether the checkpoint saw records of these clients; then epsilon covers both trainings, if that
            of the first is known; false: you vouch that it saw none
        start_epsilon: epsilon of a checkpoint from elsewhere, for the same unit and neighbours
        start_delta: delta of that checkpoint
        fresh: parameters that start at random instead: head, or patterns
        lora_rank: rank of the low-rank terms
        lora_alpha: their factor is alpha / rank
        lora_targets: kernels that get low-rank terms: dense, attention (queries and values), mlp, or patterns
    """

    rounds: int
    model: Annotated[str | None, about("", choices=ARCHITECTURES, own=True, scheme=PRETRAINED, default="logistic")] = (
        None
    )
    pool: Annotated[str | None, about("", choices=("first", "mean", "last"), default="the model's")] = None
    hidden: Annotated[str | None, about("", beside={"model": "mlp"}, metavar="INT,...", default="64")] = None
    width: Annotated[int | None, about("", beside=TRANSFORMERS, default="64")] = None
    layers: Annotated[int | None, about("", beside=TRANSFORMERS, default="2")] = None
    heads: Annotated[int | None, about("", beside=TRANSFORMERS, default="4")] = None
    patch: Annotated[int | None, about("", beside={"model": "vit"}, default="4")] = None
    loss: Annotated[str | None, about("", choices=LOSSES, default="the task's first")] = None
    dtype: Annotated[str | None, about("", choices=WIDTHS, default="float32")] = None
    trainable: Annotated[str | None, about("", metavar="WORD|PATTERN,...", default="all")] = None
    start: Annotated[str | None, about("", metavar="PATH", default="random values")] = None
    start_names: Annotated[str | None, about("", metavar="FILE")] = None
    start_data: Annotated[str | None, about("", metavar="WORDS")] = None
    start_private: bool | None = None
    start_epsilon: float | None = None
    start_delta: float | None = None
    fresh: Annotated[str | None, about("", metavar="PATTERN,...")] = None
    lora_rank: Annotated[int | None, about("", default="4")] = None
    lora_alpha: Annotated[float | None, about("", default="the rank")] = None
    lora_targets: Annotated[str | None, about("", metavar="PATTERN,...", default="dense")] = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class PrivacyConfig(PrivacyTerms):
    """How privacy is counted.

    Args:
        epsilon: privacy budget of each client; the noise is found that meets it; several with commas, in the order of
            the clients or by their names
        epsilon_high: budgets differ by client, uniformly from epsilon to this
    """

    epsilon: Annotated[float | str | None, about("", metavar="X|X,...|NAME=X,...", as_text=budgets_as_text)] = None
    epsilon_high: float | None = None

    def terms(self, num_clients: int, seed: int, names: ClientNames | None = None) -> PrivacyTerms:
        """The privacy terms; epsilons between two bounds are drawn by the seed."""
        low, high = self.epsilon, self.epsilon_high
        shared = {name: value for name, value in vars(self).items() if name != "epsilon_high"}
        if low is None or high is None:
            return PrivacyTerms(**shared).by_number(num_clients, names)
        if isinstance(low, str):
            raise errors.refuse("epsilon_high", high, f"left out beside the budgets {low} of clients", "drop it")
        from fedjax_dp.accounting.calibrate import require_budget  # loads SciPy

        for name, budget in (("epsilon", low), ("epsilon_high", high)):
            require_budget(name, budget, WITHOUT)
        if not high >= low:
            raise errors.refuse("epsilon_high", high, f"at least epsilon, {low:g}")
        budgets = numpy_stream("epsilon of clients", seed).uniform(low, high, num_clients)
        return PrivacyTerms(**shared | {"epsilon": budgets})


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExecutionConfig:
    """Where it runs; results are the same, to rounding.

    Args:
        devices: number of devices that share a cohort, at most one per client; auto takes all
        model_devices: devices that hold one model together, for models too large for one
        records: where records are kept; host feeds the next cohorts to the devices; auto: host for stores and several
            processes
        chunk_size: clients computed at once on a device; all, but 1 for large models on a CPU
        deterministic: number of parts in which the cohort is summed, in order; the same bits on any number of devices
    """

    devices: Annotated[int | str, about("", metavar="auto|INT")] = "auto"
    model_devices: int = 1
    records: Annotated[str, about("", choices=("auto", "host", "devices"))] = "auto"
    chunk_size: Annotated[int | None, about("", default="what the device takes best")] = None
    deterministic: Annotated[int | None, about("", metavar="PARTS", default="in the order of the devices")] = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class OutputConfig:
    """What is measured and written.

    Args:
        evaluate_every: rounds between evaluations
        train_metrics: also measure objective and gradient norm on all training records; on a GPU noise to signal too
        target: value of a metric, such as accuracy=0.9; rounds and bytes to it are counted
        ap: how mean average precision is computed; exact, or in 200 buckets as FLAIR's benchmark does
        top_k: also measure how often the right label is among the k likeliest
        checkpoint_every: rounds between checkpoints
        out: folder of the run; must be new or empty
    """

    evaluate_every: Annotated[int, about("", default="rounds / 20")]
    train_metrics: bool | None = None
    target: Annotated[str | None, about("", metavar="METRIC=VALUE")] = None
    ap: Annotated[str | None, about("", choices=APS, default="exact")] = None
    top_k: Annotated[int | None, about("", default="left out")] = None
    checkpoint_every: Annotated[int, about("", default="rounds / 5")]
    out: Annotated[str | None, about("", metavar="DIR", default="runs/DATASET-ALGORITHM-sSEED")] = None


GROUPS: dict[str, type] = {
    "data": PopulationConfig,
    "training": TrainingConfig,
    "privacy": PrivacyConfig,
    "execution": ExecutionConfig,
    "output": OutputConfig,
}
HELP_GROUPS = ("data", "files", "model", "training", "privacy", "server", "execution", "output")
_SMALLER_GROUPS = dict.fromkeys(NAMES, "files") | {  # of help, where a group would not fit a screen
    field.name: "model" for field in dataclasses.fields(TrainingConfig) if field.name != "rounds"
}
# Other flags of the command line.
TAKEN_OFF = (
    "help",
    "help_all",
    "json",
    "quiet",
    "verbose",
    "plain",
    "resume",
    "coordinator",
    "processes",
    "process",
    "timeout",
    "track",
    "track_dir",
)


def entry_of(algorithm: str) -> Entry[Any]:
    """The entry of the catalogue by that name, or one of the user's own, FILE.py:NAME."""
    if not own_code.is_file_name(algorithm):
        errors.require_choice("algorithm", algorithm, CATALOGUE)
        return CATALOGUE[algorithm]
    result = own_code.own("algorithm", algorithm)
    if not isinstance(result, Entry):
        remedy = "put @fedjax_dp.algorithms.entry() above a function that makes an Algorithm of options"
        raise errors.refuse("algorithm", f"{algorithm}, which is {type(result).__name__}", "an entry", remedy)
    return result


def known_options(*algorithms: Any) -> Options:
    """Options of runs of the catalogue and of the user-defined algorithms among these names."""
    own = [entry_of(algorithm) for algorithm in algorithms if own_code.is_file_name(algorithm)]
    return options_of(*own, *CATALOGUE.values())


@functools.cache
def fixed_options() -> dict[str, Options]:
    """The options that every run takes, by group."""
    return {group: of_class(cls) for group, cls in GROUPS.items()}


def groups_of(*entries: Entry[Any]) -> dict[str, Options]:
    """All options of runs of some algorithms, by group, in the order of help."""
    names = about("algorithm; or FILE.py:NAME", choices=CATALOGUE, own=True)
    result: dict[str, Options] = {name: {} for name in HELP_GROUPS}
    result["training"]["algorithm"] = Option("algorithm", str, "dpnfl", names)
    for group, options in fixed_options().items():
        for name, option in options.items():
            result[_SMALLER_GROUPS.get(name, group)][name] = option
    fields = {name for options in result.values() for name in options} | set(TAKEN_OFF)
    taken: set[str] = set()
    for entry in entries:
        for name, option in entry.options.items():
            if name in fields:
                raise errors.refuse(
                    f"an option of {entry.name}", name, "a name that no field of a run has", "rename it"
                )
            if option.kinds and name not in taken:
                result.setdefault(option.about.group or "training", {})[name] = option
                taken.add(name)
    return result


def options_of(*entries: Entry[Any]) -> Options:
    """All options without groups, by default of every entry of the catalogue."""
    grouped = groups_of(*(entries or CATALOGUE.values()))
    return {name: option for options in grouped.values() for name, option in options.items()}
