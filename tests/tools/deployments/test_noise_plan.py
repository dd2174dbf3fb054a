"""The noise that meets a budget through a description, and in the settings of a system."""

import dataclasses
import json
import tomllib

import pytest
from helpers import SPECS, refusal
from test_judgement import ALL, CENTRAL, RECORD, replace

from fedjax_dp import errors
from fedjax_dp.tools.deployments import Deployment, check, plan, templates

GOLDEN = json.loads((SPECS / "other_systems.json").read_text())["plans"]
FILLED = {  # what stands in the blanks of a template
    "plan-opacus": ("opacus", {"clients": {"of": 10}, "records": {"rate": 32 / 4000, "steps": 125}}),
    "plan-flower-central": (
        "flower-central",
        {"clients": {"size": 100, "of": 1000, "members": "hidden"}, "weights": {"largest": 0.01}},
    ),
    "plan-flower-local": ("flower-local", {"clients": {"of": 10}}),
    "plan-fl4health-instance": (
        "fl4health-instance",
        {"clients": {"rate": 0.66, "of": 3}, "records": {"rate": 64 / 40000, "steps": 625}},
    ),
    "plan-fedml": ("fedml", {"clients": {"size": 2, "of": 1000, "members": "hidden"}, "weights": {"largest": 0.5}}),
    "plan-nvflare": ("nvflare-svt", {"clients": {"of": 2}}),
    "plan-appfl": ("appfl", {"clients": {"of": 2}}),
}


def filled(name, ask, facts):
    stated = templates.template(name)
    stated |= {"delta": ask["delta"], "rounds": ask.get("rounds", ask.get("n_server_rounds", 1))}
    stated["noise"] = {key: value for key, value in stated["noise"].items() if key not in ("std", "calibration")}
    if stated["clip"].get("bound"):
        stated["clip"]["bound"] = ask.get("clipping_norm", 1.0)
    stated.pop("selection", None)
    for group, own in facts.items():
        stated[group] |= own
    return Deployment.from_dict(stated)


@pytest.mark.parametrize("case", GOLDEN)
def test_plans_are_those_of_the_oracle(case):
    ask, expected = GOLDEN[case]["ask"], GOLDEN[case]["expect"]
    name, facts = FILLED[case]
    deployment = filled(name, ask, facts)
    if expected.get("refused"):
        assert "bounds what a client sends" in refusal(plan, deployment, epsilon=ask["epsilon"], system=name)
        return
    planned = plan(deployment, epsilon=ask["epsilon"], system=name)
    found = planned.settings | {"noise_std": planned.deployment.noise.std}
    for key, value in expected.items():
        wanted = value if isinstance(value, str) else pytest.approx(value, rel=0.005)
        assert found[key] == wanted, key
    assert tomllib.loads(planned.to_toml()) == planned.settings


@pytest.mark.parametrize("facts", ALL)
def test_what_is_planned_is_what_is_checked(facts):
    planned = plan(replace(facts), epsilon=2.0)
    again = Deployment.from_dict(tomllib.loads(planned.to_toml()))
    assert again == planned.deployment
    assert 0.999 * 2.0 <= check(again).mechanism.epsilon <= 2.0


def test_clients_with_numbers_of_their_own_get_noise_of_their_own():
    rates = [0.01, 0.05, 0.2]
    planned = plan(replace(RECORD, records__rate=rates), epsilon=2.0)
    assert sorted(planned.deployment.noise.std) == list(planned.deployment.noise.std)
    assert all(1.99 < one <= 2.0 for one in planned.check.mechanism.epsilons)


def test_a_server_adds_one_noise_to_the_sum_of_all():
    """Else the client of the largest bound would be planned, and checked, with noise that nobody adds."""
    bounds = {"clients": {"law": "all", "of": 3}, "clip__bound": [1.0, 5.0, 10.0], "noise__on": "sum"}
    bounds["weights"] = {"largest": 1.0, "denominator": "fixed"}
    planned = plan(replace(CENTRAL, **bounds), epsilon=2.0)
    assert isinstance(planned.deployment.noise.std, float)
    assert 1.99 < max(planned.check.mechanism.epsilons) <= 2.0
    assert min(planned.check.mechanism.epsilons) < 1.0
    assert "one for noise by the server" in refusal(replace, CENTRAL, **bounds, noise__std=[1.0, 5.0, 10.0])


def test_counts_that_cost_more_than_the_budget_leave_no_plan():
    adaptive = replace(CENTRAL, clip__threshold="adaptive", clip__count_noise=0.01, noise__scale="bound")
    assert "clip.count_noise" in refusal(plan, adaptive, epsilon=2.0)


def test_no_plan_where_noise_bounds_nothing_or_a_system_is_set_up_otherwise():
    assert "unclipped" in refusal(plan, replace(CENTRAL, clip__of="nothing"), epsilon=2.0)
    assert "flower-local" in refusal(plan, replace(CENTRAL), epsilon=2.0, system="flower-local")
    assert "epsilon" in refusal(plan, replace(CENTRAL), epsilon=-1.0)


def test_shares_that_differ_need_more_noise_and_no_setting_says_they_are_equal():
    equal = plan(replace(CENTRAL), epsilon=8.0, system="flower-central").settings
    unequal = plan(replace(CENTRAL, weights__largest=0.3), epsilon=8.0, system="flower-central").settings
    assert unequal["noise-multiplier"] == pytest.approx(3 * equal["noise-multiplier"])
    assert "num-examples" in equal
    assert "num-examples" not in unequal


def test_every_template_is_a_description_with_blanks_and_says_what_a_plan_is():
    for name in templates.names():
        stated = templates.template(name)
        assert {"unit", "delta", "rounds", "clients", "clip", "noise"} <= set(stated)
        assert templates.text_of(name).startswith("# ")
        assert max(map(len, templates.text_of(name).splitlines())) <= 140
        if name != "blank":
            settings = templates.settings_of(name)
            assert ("refused" in settings) != ("settings" in settings)


def test_a_version_newer_than_its_template_is_refused():
    source = {"system": "Flower", "version": "1.50.0"}
    with pytest.raises(errors.ConfigurationError, match=r"1\.42\.0.*1\.50\.0.*blank"):
        check(replace(CENTRAL, source=source))
    older = dataclasses.replace(replace(CENTRAL), source={"system": "Flower", "version": "1.30"})
    assert check(older).verdict == "no claim"
