"""Every class of `fedjax_dp.parts` that fits a slot goes through the examiners that parts of users go through."""

import importlib
import inspect
import pkgutil

import numpy as np
import pytest
from helpers import ragged_data
from own_parts import CLIENT, CLIP, COMMON, OUTPUT, RECORD, lying, steps, with_privatizer

import fedjax_dp as fdp
from fedjax_dp import inspection, parts, validation
from fedjax_dp.accounting import Buffers, ParticipationLog
from fedjax_dp.algorithms import CATALOGUE
from fedjax_dp.parts import facts
from fedjax_dp.pytrees import replace
from fedjax_dp.tools.testing import check_algorithm

DATA = ragged_data([8, 8, 8, 10, 12, 9])
MODEL = fdp.mlp(DATA.record_shape, DATA.classes, (4,))
ROUNDS = 40


def entry(name, **options):
    given = {**COMMON, **(CLIP if CATALOGUE[name].private else {}), **options}
    return CATALOGUE[name].of({name: value for name, value in given.items() if value is not ...})


def with_cohort(part):
    return (replace(RECORD, cohort=part), replace(CLIENT, cohort=part))


# of rounds of one to four clients, the last of them in one round
PAIRS = np.array([(at, client) for at in range(40) for client in range(1 + at % 4)] + [(5, 5)])
LOG = ParticipationLog.of(PAIRS, 40, 6)
BANDS = parts.BandedNoise(bands=(1.0, -0.5))
STRATEGY = parts.StrategyNoise.of((1.0, 0.6, 0.3), 40)
BUFFERED = parts.BufferedNoise.of(Buffers(np.array([0.9, 0.5]), np.array([0.2, 0.3])))
# of each class algorithms that it is a part of
EXAMPLES = {
    "AllClients": with_cohort(parts.AllClients()),
    "UniformCohort": with_cohort(parts.UniformCohort(size=3)),
    "PoissonCohort": with_cohort(parts.PoissonCohort(size=3)),
    "CyclicCohort": with_cohort(parts.CyclicCohort(size=3)),
    **{
        type(part).__name__: (replace(CLIENT, cohort=part),)
        for part in (
            parts.AllocatedCohort(pass_rounds=5, chosen=2),
            parts.BinnedCohort(pass_rounds=4),
            parts.CyclicPoissonCohort(size=1, pass_rounds=3),
            parts.SeparatedCohort(size=2, separation=2),
            parts.TruncatedPoissonCohort(size=3, most=4),
        )
    },
    "LoggedCohort": with_cohort(parts.LoggedCohort.of(LOG)),
    "MultinomialCohort": (
        replace(
            RECORD,
            cohort=parts.MultinomialCohort(draws=3, probabilities=np.full(6, 1 / 6), public=True),
            aggregate=parts.ESTIMATORS["wor_delta"],
        ),
    ),
    "Dropout": with_cohort(parts.Dropout(cohort=parts.UniformCohort(size=4), rate=0.3)),
    "FirstResponders": (
        replace(
            RECORD,
            cohort=parts.FirstResponders(cohort=parts.UniformCohort(size=4), size=3),
        ),
    ),
    "FixedBatches": (steps(RECORD, batches=parts.FixedBatches(size=2)),),
    "ReplacementBatches": (steps(RECORD, batches=parts.ReplacementBatches(size=2)),),
    "PoissonBatches": (steps(RECORD, batches=parts.PoissonBatches(size=2)),),
    "FullBatches": (steps(RECORD, batches=parts.FullBatches()),),
    "EpochBatches": (
        steps(RECORD, batches=parts.EpochBatches(size=2)),
        steps(RECORD, batches=parts.EpochBatches(size=5, last="keep")),
    ),
    "AllocatedBatches": tuple(
        steps(RECORD, batches=parts.AllocatedBatches(size=3, kept=kept)) for kept in (False, True)
    ),
    "ClipRecords": (
        RECORD,
        steps(RECORD, batches=parts.PoissonBatches(size=2)),
        with_privatizer(OUTPUT, bound=parts.ClipRecords()),
    ),
    "ClipBatch": (with_privatizer(RECORD, bound=parts.ClipBatch()), OUTPUT),
    "ScaleGradients": (with_privatizer(RECORD, bound=parts.ScaleGradients(gradient_bound=5.0)),),
    "WhiteNoise": (RECORD, CLIENT),
    "BandedNoise": (
        with_privatizer(RECORD, source=BANDS),
        replace(CLIENT, upload=replace(CLIENT.upload, source=BANDS)),
    ),
    "StrategyNoise": tuple(
        replace(CLIENT, upload=replace(CLIENT.upload, source=STRATEGY), cohort=cohort)
        for cohort in (CLIENT.cohort, parts.CyclicPoissonCohort(size=1, pass_rounds=3))
    ),
    "BufferedNoise": (replace(CLIENT, upload=replace(CLIENT.upload, source=BUFFERED)),),
    "RecordGaussian": (RECORD, steps(RECORD, batches=parts.PoissonBatches(size=2)), steps(RECORD, steps=12)),
    "OutputGaussian": (OUTPUT,),
    "ClientGaussian": (CLIENT, replace(CLIENT, upload=replace(CLIENT.upload, by_tensor=True))),
    "AdaptiveClientGaussian": (entry("dp_fedavg", adaptive_clip=True, bit_noise=3.0),),
    "ClientSkellam": (entry("dp_fedavg", cohort="uniform", noise="shared", secure=True, fractional_bits=6),),
    "Estimator": tuple(
        replace(of, aggregate=parts.ESTIMATORS[name]) for of in (RECORD, CLIENT) for name in ("mean", "wor_delta")
    ),
    "BoundedMean": (entry("dp_fedavg", cohort="poisson"),),
    "TrimmedMean": (replace(RECORD, aggregate=parts.TrimmedMean(trim=0.2)),),
    "PlainSum": (RECORD, CLIENT),
    "SecureSum": (entry("cpfed"),),
    "LocalSgd": (RECORD, CLIENT),
    "PersonalSgd": (entry("ditto"), entry("fedrep", head="head")),
    "LocalRule": (entry("dpnfl", local_rule="adam"),),
    "L2Penalty": (entry("dpnfl", l2=0.1), entry("dp_fedavg_output", l2=0.1)),
    "Proximal": (entry("fedprox"),),
    "ControlVariates": (entry("dp_scaffold"),),
    "FeatureMatching": (entry("rfedavg_plus"),),
    "OwnClusters": (entry("ifca"),),
    "ModelBeside": (entry("ditto"),),
    "JointModels": (entry("ditto_joint"),),
    "MixedModels": (entry("apfl"),),
    "FineTuned": (entry("finetune"),),
    "OwnModel": (entry("mr_mtl"),),
    "OwnPart": (entry("fedper", head="head"),),
    "OwnOffset": (entry("ppsgd"),),
}
# of what has no epsilon the reason is stated, and nothing is there to be examined
WITHOUT = {
    "NonPrivate": lambda: parts.NonPrivate().no_epsilon_reason,
    "PlainUpload": lambda: parts.PlainUpload().unit is None,
    "Unbounded": lambda: parts.Unbounded().no_epsilon_reason,
    "ClipTensorsAtMedian": lambda: parts.ClipTensorsAtMedian().no_epsilon_reason,
    "FairRatio": lambda: parts.FairRatio(q=1.0).needs_loss,
}
FEATURES = ("FeatureMatching", "OwnPart")  # they need a layer before the last
# whose facts hold under an assumption that the Guarantee names, which the worst neighbours break
ASSUMING = {"ScaleGradients": "not finite"}
# what examiners understand of the project's own alone, in their words: the conformance suite looks at these
OWN_ALONE = {
    "OutputGaussian": "supported by OutputGaussian alone",
    "AdaptiveClientGaussian": "only the project's uploads",
    "ClientSkellam": "only the project's uploads",
}


def classes():
    """Public classes of the modules of `fedjax_dp.parts` that have all members of a slot's Protocol, with slots."""
    found = {}
    for module in pkgutil.iter_modules(parts.__path__):
        inside = importlib.import_module(f"fedjax_dp.parts.{module.name}")
        for name, cls in vars(inside).items():
            mine = inspect.isclass(cls) and cls.__module__ == inside.__name__ and not name.startswith("_")
            if mine and not getattr(cls, "_is_protocol", False):
                slots = [slot for slot, protocol in facts.SLOTS.items() if fits(cls, protocol)]
                found |= {cls: slots} if slots else {}
    return found


def fits(cls, protocol):
    return set(validation.members(protocol)) <= {*dir(cls), *facts.own_names(cls)}


def test_every_class_of_a_slot_is_listed():
    listed = {*EXAMPLES, *WITHOUT}
    unlisted = sorted(cls.__name__ for cls in classes() if cls.__name__ not in listed)
    assert not unlisted, f"{', '.join(unlisted)}: list an algorithm with it in EXAMPLES"
    assert listed == {cls.__name__ for cls in classes()}
    for name, algorithms in EXAMPLES.items():
        for algorithm in algorithms:
            kinds = {type(part).__name__ for _, part in facts.parts_of(algorithm)}
            assert name in kinds, name


def examined(name, algorithm):
    """Every part of that class in the algorithm, as if it were a user's."""
    for slot, part in facts.parts_of(algorithm):
        if type(part).__name__ == name:
            if slot != "correction" or algorithm.local.privatizer.on_upload:
                facts.require_stated(slot, part)
            inspection.examine_part(slot, part, inspection.Place(algorithm, DATA, MODEL, ROUNDS))


LONG = (
    "CyclicPoissonCohort",
    "SeparatedCohort",
    "TruncatedPoissonCohort",
    "BandedNoise",
    "BinnedCohort",
    "MultinomialCohort",
    "FirstResponders",
    "Dropout",
    "ClipBatch",
    "SecureSum",
)


# CI examines the first in tests/rounds/test_personal.py, the second law as BinnedCohort is, the others by
# test_a_right_algorithm_passes_every_check, tests/tools/testing/test_testing.py: three quarters of a minute in all
LONGEST = (
    "PersonalSgd",
    "AllocatedCohort",
    "ClientGaussian",
    "LocalSgd",
    "RecordGaussian",
    "ClipRecords",
    "Estimator",
    "WhiteNoise",
)


def mark_of(name):
    return [pytest.mark.exhaustive] if name in LONGEST else [pytest.mark.slow] * (name in LONG)


@pytest.mark.parametrize("name", [pytest.param(name, marks=mark_of(name)) for name in EXAMPLES])
def test_every_part_is_what_it_states(name):
    exempt = {**OWN_ALONE, **ASSUMING}
    for algorithm in EXAMPLES[name]:
        if name in exempt:
            with pytest.raises(AssertionError, match=exempt[name]):
                examined(name, algorithm)
        else:
            examined(name, algorithm)


def test_a_log_is_examined_in_the_rounds_that_it_has():
    logged = EXAMPLES["LoggedCohort"][1]
    inspection.examine_part("cohort", logged.cohort, inspection.Place(logged, DATA, MODEL, 2 * ROUNDS))


@pytest.mark.parametrize("name", WITHOUT)
def test_what_has_no_epsilon_says_so(name):
    assert WITHOUT[name]()


@pytest.mark.exhaustive  # all checks of one take half a minute; CI has them in tests/tools/testing
@pytest.mark.parametrize("name", [name for name in EXAMPLES if name not in ASSUMING])
def test_every_part_passes_the_conformance_suite(name):
    check_algorithm(EXAMPLES[name][0], DATA, model=MODEL if name in FEATURES else None)


def a_round_later(self, keys, round_index, shares):
    return parts.LoggedCohort.sample(self, keys, round_index + 1, shares)


def test_a_cohort_that_is_not_its_log_is_found():
    later = replace(CLIENT, cohort=lying(parts.LoggedCohort.of(LOG), sample=a_round_later))
    with pytest.raises(AssertionError, match="who takes part: measured"):
        inspection.examine_part("cohort", later.cohort, inspection.Place(later, DATA, MODEL, ROUNDS))
