"""The learning rates of the small sweeps follow from their pilot by the rule in its file."""

from collections import defaultdict
from functools import cache

import pytest

from normbench import results
from normbench.config.compose import compose
from normbench.config.files import ROOT, SWEEPS, names
from support.slow import slow_except

PILOTS = ROOT / "reports" / "studies" / "pilots"
#: These measure speed or count, and need not learn.
UNTUNED = {"nf_4_small", "nf_5_small"}
SMALL = [name for name in names(SWEEPS) if name.endswith("_small") and name not in UNTUNED]
#: The paper gives the normalizer half of the rate, or the recipe is not in the pilot.
OTHERS = {"fixup", "skipinit", "nf_resnet_15", "evonorm_efficientnet", "sn_rmsprop"}
#: The same rate with other epochs.
AS = {"evonorm_resnet_180": "evonorm_resnet_90"}


@cache
def tuned() -> dict[str, float]:
    """Return the rate of each recipe, over the number of images to which it belongs."""
    tried: dict[str, dict[float, float]] = defaultdict(dict)
    images: dict[str, int] = {}
    for row in results.read(PILOTS):
        if row.sweep == "small_pilot" and row.val_top1 is not None:
            recipe = row.config["recipe"]
            tried[row.recipe][recipe["lr"]] = row.val_top1
            images[row.recipe] = recipe["lr_batch"]
    assert all(len(rates) >= 5 for rates in tried.values())
    return {
        recipe: min(lr for lr in rates if rates[lr] >= max(rates.values()) - 0.5) / images[recipe]
        for recipe, rates in tried.items()
    }


@pytest.mark.parametrize("name", slow_except(SMALL, ["sn_1_small", "nf_2_small"]))
def test_a_small_sweep_has_the_rates_of_the_pilot(name: str) -> None:
    cells, _ = compose(["-m", f"sweeps={name}", "seed=0"])
    for cell in cells:
        recipe, options = cell.recipe.name, cell.recipe.options
        if recipe == "nf_resnet_15":
            rate = tuned()["nf_resnet"]
            # The paper's rates are 0.4, 0.025 and 0.01 at 1024, 8 and 4 images.
            for images, of_paper in {128: 0.4, 8: 0.025, 4: 0.01}.items():
                assert options["rates"][images] == pytest.approx(128 * rate * of_paper / 0.4)
        elif not OTHERS & {cell.norm.name, recipe}:
            rate = tuned()[AS.get(recipe, recipe)]
            assert options["lr"] / options["lr_batch"] == pytest.approx(rate)
