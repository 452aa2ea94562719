"""Each form of each model has the number of parameters of its paper."""

import json

import pytest
import torch

from bench.models.__main__ import main
from bench.models.model import Form, Model
from bench.models.registry import ZOO, UnknownModelError, find

FORMS = [
    pytest.param(model, form, id=f"{name}: {form.title}")
    for name, model in ZOO.items()
    for form in (model.inference, *model.training)
]


@pytest.mark.slow
@pytest.mark.parametrize(("model", "form"), FORMS)
def test_parameters_are_as_many_as_published_and_the_output_has_the_shape_that_the_form_says(
    model: Model, form: Form
) -> None:
    batch = 3 if form.batches == (1,) else form.batches[0]
    with torch.device("meta"):
        built = form.build().eval()
        output = built(*form.inputs(batch))
    if form is model.inference:
        assert sum(p.numel() for p in built.parameters()) == model.n_parameters
    assert output.shape == form.output_shape(batch)


@pytest.mark.parametrize(("model", "form"), FORMS)
def test_inputs_and_weights_are_the_same_for_the_same_seed_and_others_for_another(
    model: Model, form: Form
) -> None:
    def drawn(seed: int) -> list[torch.Tensor]:
        torch.manual_seed(seed)
        return list(form.inputs(2))

    assert all(map(torch.equal, drawn(1), drawn(1)))
    assert not all(map(torch.equal, drawn(1), drawn(2)))


def test_names_are_distinct_and_find_finds_them() -> None:
    assert [find(name) for name in ZOO] == list(ZOO.values())


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("resnet5", "did you mean 'resnet50'"),
        ("", "there are resnet50"),
        ("torchvision:resnet18", "torchvision is not installed"),
        pytest.param(
            "transformers:none", "transformers has no model 'none'", marks=pytest.mark.slow
        ),
    ],
)
def test_an_unknown_model_is_an_error_that_says_what_there_is(name: str, message: str) -> None:
    with pytest.raises(UnknownModelError, match=message):
        find(name)


@pytest.mark.slow
def test_a_model_of_an_installed_package_joins_by_its_name() -> None:
    model = find("transformers:albert")
    with torch.device("meta"):
        output = model.inference.build().eval()(*model.inference.inputs(2))
    assert output.shape == model.inference.output_shape(2)


def test_the_list_names_parameters_and_inputs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["googlenet", "--json"]) == 0
    (listed,) = json.loads(capsys.readouterr().out)
    assert listed["parameters"] == 6_624_904
    assert listed["inference"][0]["inputs"] == ["f32[1, 3, 224, 224]"]
    assert listed["training"][0]["inputs"] == ["f32[32, 3, 32, 32]"]
