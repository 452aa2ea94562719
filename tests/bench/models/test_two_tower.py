"""The two towers' scores."""

import torch

from bench.models.two_tower import CANDIDATE, MODELS, QUERY, TEMPERATURE, TwoTower


@torch.no_grad()
def test_a_row_is_a_query_and_a_column_a_candidate() -> None:
    model = TwoTower()
    query, history, candidate = MODELS[0].inference.inputs(3)
    scores = model(query, history, candidate)
    pair = model(query[:, 1:2], history[1:2], candidate[:, 2:3])
    torch.testing.assert_close(scores[1, 2], pair[0, 0])
    assert scores.abs().max() <= 1 / TEMPERATURE


@torch.no_grad()
def test_the_history_is_averaged_in_the_table_of_videos() -> None:
    model = TwoTower()
    query, history, candidate = MODELS[0].inference.inputs(2)
    table = model.tables["video"]
    features = [table(history).mean(1)]
    features += [model.tables[kind](i) for kind, i in zip(QUERY, query, strict=True)]
    items = [model.tables[kind](i) for kind, i in zip(CANDIDATE, candidate, strict=True)]
    towers = model.query(torch.cat(features, 1)), model.candidate(torch.cat(items, 1))
    cosines = torch.cosine_similarity(towers[0][:, None], towers[1][None], dim=2)
    torch.testing.assert_close(model(query, history, candidate), cosines / TEMPERATURE)
