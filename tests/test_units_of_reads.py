"""What metrics are called with: sums at the right place, stack and count, each on a few numbers by hand."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from anisoscope.axes import LAYER_QUANTITIES, Site
from anisoscope.errors import UsageError
from anisoscope.reads import extremes, vectors
from anisoscope.reads.base import Batching, Gathered, draw_cloud, draw_pairs
from anisoscope.reads.classes import Classes, ClassSums
from anisoscope.reads.extremes import (
    Keys,
    LogitExtremes,
    Logits,
    Sequences,
    SequenceSums,
)
from anisoscope.reads.modalities import Modalities, ModalitySums
from anisoscope.reads.pairs import LayerPair
from anisoscope.reads.query_key import QueryKey
from anisoscope.reads.rows import CentredRows, Rows, Scores, compute_rows
from anisoscope.reads.sample import KeptSample, Sample, is_usable, select_sample
from anisoscope.reads.vectors import Vectors, VectorSums
from anisoscope.reads.weights import Weights, summarise_matrix
from anisoscope.sums.extremes import Extremes
from anisoscope.sums.groups import Sums
from anisoscope.sums.reservoir import Reservoir


def gather(terms, classes=(), weights=None, units=(3, 5, 9), reservoirs=None):
    """What a pass has kept: {site: {term: [group, …]}}."""
    sums = Sums(3)
    sums.units = set(units)
    for site, of_site in terms.items():
        for term, values in of_site.items():
            sums.terms[site.name, term] = torch.as_tensor(values, dtype=torch.float64)
    sites = {site.name: site for site in terms}
    return Gathered(sums, sites, reservoirs or {}, weights or {}, classes)


def metric(*needs, name="m"):
    return SimpleNamespace(name=name, needs=frozenset(needs))


# ---- where values are ------------------------------------------------------------------------------------------------


def test_what_follows_the_last_layer_has_the_number_of_its_own_stack():
    """An encoder of 6 layers and a decoder of 2, whatever the order in which their sites came."""
    sites = [
        Site("decoder", 2, "hidden"),
        Site("encoder", None, "final"),
        Site("encoder", 6, "key", "rotated"),
        Site("encoder", 1, "stage"),
        Site("decoder", None, "final"),
        Site("decoder", 1, "attention", kind="cross"),
        Site("joint", None, "final"),
    ]
    for order in (sites, sites[::-1]):
        kept = gather({site: {} for site in order}, units=range(7))
        rows = [kept.make_columns(site) for site in sites]
        places = [(r["stack"], r["kind"], r["layer"], r["site"]) for r in rows]
        assert places == [
            ("decoder", "self", 2, "hidden"),
            ("encoder", "self", 6, "final"),
            ("encoder", "self", 6, "key.rotated"),
            ("encoder", "self", 1, "stage"),
            ("decoder", "self", 2, "final"),
            ("decoder", "cross", 1, "attention"),
            ("joint", "self", 0, "final"),
        ]
        assert {row["n_units"] for row in rows} == {7}
        assert [row.get("head", "of each") for row in rows] == [
            None, None, "of each", None, None, "of each", None,
        ]  # fmt: skip


SITES = [
    Site(stack, layer, quantity, stage, kind)
    for stack in ("encoder", "decoder")
    for layer in (1, 2)
    for quantity in (*LAYER_QUANTITIES[:3], "query", "key", "value", "attention", "scores", "centred", "extremes")
    for stage in (("raw", "rotated") if quantity in ("query", "key") else ("",))
    for kind in (("self", "cross") if quantity in ("query", "key", "attention") else ("self",))
] + [Site("encoder", None, "final"), Site("decoder", None, "final")]  # fmt: skip


def of_quantity(*quantities):
    return [site for site in SITES if site.quantity in quantities]


@pytest.mark.parametrize(
    ("reads", "needs", "sites"),
    [
        (Vectors(), {"n"}, of_quantity("hidden", "stage", "pre_relu", "final")),
        (Vectors(("final",)), {"n"}, of_quantity("final")),
        (Vectors(("key", "value")), {"n"}, of_quantity("key", "value")),
        (QueryKey(), {"n"}, of_quantity("query")),
        (Rows(), {"rows"}, of_quantity("attention")),
        (CentredRows(), {"plain.rows"}, of_quantity("centred")),
        (Scores(), {"rows"}, of_quantity("scores")),
        (Classes(), {"class_n"}, of_quantity("hidden")),
        (Sequences(), {"activation_sequences"}, of_quantity("hidden", "stage", "pre_relu", "final")),
        (Logits(), {"logit_sequences"}, of_quantity("attention")),
        (Keys(), {"key_sequences"}, of_quantity("extremes")),
    ],
)  # fmt: skip
def test_readings_are_of_their_own_sites_with_their_own_sums(reads, needs, sites):
    """Each site has another number; one has no data, and one group of another none."""
    (term,) = needs
    shape = {"n": (3, 2, 2)}.get(term, (3, 2))
    terms = {}
    for number, site in enumerate(SITES):
        values = np.arange(math.prod(shape), dtype=float).reshape(shape) + number
        values[1] = 0
        terms[site] = {term: values, "other": values * 100}
    terms[sites[1]][term][:] = 0
    kept = gather(terms, classes=("a", "b"))
    found = list(reads.readings(metric(*needs), kept))
    expected = [site for site in sites if site != sites[1]]
    # a query without data may still have keys
    if isinstance(reads, QueryKey):
        expected = sites
    assert [r.columns for r in found] == [kept.make_columns(site) for site in expected]
    for reading, site in zip(found, expected, strict=True):
        data = getattr(reading.data, "totals", reading.data)
        prefix = "query." if isinstance(reads, QueryKey) else ""
        assert "other" not in data
        total = terms[site][term].sum(0)
        np.testing.assert_array_equal(data[prefix + term][0], total)
        assert data.n_groups == 2
        count = total.sum() if isinstance(reads, Classes) else total
        np.testing.assert_array_equal(reading.count, count)
        assert reading.names == (("a", "b") if isinstance(reads, Classes) else ())


def test_queries_meet_the_keys_of_their_own_layer_stage_and_kind():
    terms = {}
    for number, site in enumerate(of_quantity("query", "key")):
        values = np.full((3, 1, 2), number + 1.0)
        terms[site] = {
            "n": values,
            "head_moment_n": values[:, 0] * 10,
            "vector": values,
        }
    kept = gather(terms)
    for needs, count in ((("n", "vector"), "n"), (("head_moment_n",), "head_moment_n")):
        found = list(QueryKey().readings(metric(*needs), kept))
        assert len(found) == len(of_quantity("query"))
        for reading, site in zip(found, of_quantity("query"), strict=True):
            key = Site(site.stack, site.layer, "key", site.stage, site.kind)
            for side, each in (("query", site), ("key", key)):
                for term in needs:
                    values = reading.data[f"{side}.{term}"]
                    np.testing.assert_array_equal(values[0], terms[each][term].sum(0))
            np.testing.assert_array_equal(reading.count, terms[site][count].sum(0))


def test_how_many_vectors_are_behind_a_value():
    """Kinds of token make up the whole; bins of frequency and position count the same tokens once more."""
    site = Site("encoder", 1, "hidden")
    kept = gather(
        {
            site: {
                "n": np.full((3, 2, 1), 5.0),
                "moment_n": np.full((3, 1), 4.0),
                "sequences": np.full((3, 2, 1), 2.0),
                "sequence_cosine": np.full((3, 2, 1), 1.0),
                "subset_n": np.arange(3 * 13.0).reshape(3, 13, 1),
            }
        }
    )
    for needs, count in (
        (("n",), [[15], [15]]),
        (("moment_n",), [12]),
        (("sequence_cosine",), [[6], [6]]),
        (("sequence_cosine", "n"), [[15], [15]]),
        (("subset_n",), [3 * (0 + 1 + 2) + 3 * (13 + 26)]),
    ):
        (reading,) = Vectors().readings(metric(*needs), kept)
        assert reading.count.tolist() == count, needs


def test_sequences_are_counted_as_their_metric_counts_them():
    site = Site("encoder", 1, "hidden")
    counts = {"activation_sequences": [1.0, 2, 3], "matrix_sequences": [1.0, 0, 1]}
    kept = gather({site: counts | {"top": np.ones((3, 3))}})
    kept.extremes.offer(site.name, "activation", torch.tensor([7.0]), torch.tensor([[1, 2, 3, 4]]))  # fmt: skip
    of_top = next(Sequences().readings(metric("activation_sequences", "top"), kept))
    assert of_top.count == 6 and of_top.data.extremes["activation"][0].tolist() == [7]
    left = of_top.data.without(0)
    assert left.totals["activation_sequences"].tolist() == [5, 3, 2]
    assert left.n_groups == 2 and left.present.tolist() == [True, True]
    assert left.extremes is of_top.data.extremes
    assert next(Sequences().readings(metric("matrix_sequences"), kept)).count == 2


def test_only_a_layer_with_images_and_texts_has_both():
    both, images = Site("encoder", 1, "hidden"), Site("vision", 2, "hidden")
    terms = {
        images: {"modality_n": [[[2.0], [0]]] * 3, "modality_unit": np.ones((3, 2, 1, 2))},
        both: {"modality_n": [[[2.0], [0]], [[0.0], [5]], [[1.0], [0]]], "modality_unit": np.ones((3, 2, 1, 2))},
        Site("decoder", 1, "hidden"): {"n": np.ones((3, 1, 1))},
    }  # fmt: skip
    (reading,) = Modalities().readings(
        metric("modality_n", "modality_unit"), gather(terms)
    )
    assert reading.columns["stack"] == "encoder" and reading.count.tolist() == [8]


def test_a_metric_of_weights_has_its_own_terms_of_each_matrix():
    matrices = {"embedding.input": np.ones((4, 2)), "embedding.output": np.ones((7, 2))}
    summaries = {
        "m": lambda matrix: {"total": matrix.sum(keepdims=True)[None]},
        "m.more": lambda matrix: {"total": -matrix.sum(keepdims=True)[None]},
    }
    summaries = {"other": summaries["m.more"], **summaries}
    weights = {name: summarise_matrix(x, summaries) for name, x in matrices.items()}
    reads = Weights(summaries["m"])
    found = list(reads.readings(metric(), gather({}, weights=weights)))
    assert [(r.columns["site"], float(r.count)) for r in found] == [
        ("embedding.input", 4),
        ("embedding.output", 7),
    ]
    assert [float(r.data["total"][0, 0, 0]) for r in found] == [8, 14]
    assert {r.columns[name] for r in found for name in ("stack", "kind", "layer", "n_units")} == {None}  # fmt: skip
    assert reads.summary() is summaries["m"]


# ---- what is kept ----------------------------------------------------------------------------------------------------


def test_keepers_of_one_kind_are_joined_to_what_either_keeps():
    a = VectorSums({"hidden": frozenset({"unit"}), "key": frozenset({"norm"})})
    b = VectorSums({"key": frozenset({"vector"}), "final": frozenset()})
    joined = a.join(b)
    assert joined.terms == {
        "hidden": {"unit"},
        "key": {"norm", "vector"},
        "final": set(),
    }
    assert joined.list_terms("hidden") == {"unit", "n"}
    assert joined.list_terms("value") == {"n"}
    squares = VectorSums(dict.fromkeys(("query", "hidden"), frozenset({"unit_square"})))
    assert squares.list_terms("query") == {"n"}
    assert squares.list_terms("hidden") == {"n", "unit_square"}
    sequences = SequenceSums(frozenset({"top"})).join(
        SequenceSums(frozenset({"median"}))
    )
    assert sequences.needs == {"top", "median"}
    plain, of_heads = KeptSample(), KeptSample(heads=True)
    pairs = ((plain, plain), (plain, of_heads), (of_heads, plain))
    assert [x.join(y).heads for x, y in pairs] == [False, True, True]


@pytest.mark.parametrize(
    ("keeper", "sites"),
    [
        (VectorSums(), of_quantity("hidden", "stage", "pre_relu", "final", "query", "key", "value")),
        (KeptSample(), of_quantity("hidden", "stage", "pre_relu", "final")),
        (KeptSample(heads=True), of_quantity("hidden", "stage", "pre_relu", "final")
         + [site for site in of_quantity("query", "key") if site.kind == "self"]),
        (ClassSums(), of_quantity("hidden")),
        (ModalitySums(), of_quantity("hidden", "stage", "pre_relu", "final")),
        (SequenceSums(frozenset()), of_quantity("hidden", "stage", "pre_relu", "final")),
        (LogitExtremes(), of_quantity("attention")),
        (extremes.KeySums(), of_quantity("extremes")),
        (next(iter(Rows().keepers(frozenset()))), of_quantity("attention")),
        (next(iter(CentredRows().keepers(frozenset()))), of_quantity("centred")),
        (next(iter(Scores().keepers(frozenset()))), of_quantity("scores")),
    ],
)  # fmt: skip
def test_each_keeper_takes_its_own_sites(keeper, sites):
    assert {site for site in SITES if keeper.takes(site)} == set(sites)


def test_which_axes_the_values_of_a_kind_have():
    vectors, heads = Vectors(), Vectors(("query",))
    for reads, needs, axes, first, roles, whole in (
        (vectors, {"n"}, ("policy", "head"), False, False, False),
        (vectors, {"sequence_cosine", "n"}, ("policy", "head"), False, False, True),
        (vectors, {"subset_unit"}, ("head",), False, True, True),
        (vectors, {"moment", "moment_n"}, ("head",), True, False, False),
        (heads, {"unit"}, ("policy", "head"), False, False, False),
        (QueryKey(), {"unit"}, ("policy", "head"), False, False, False),
        (QueryKey(), {"head_moment"}, ("head",), True, False, False),
        (Rows(), {"rows"}, ("head",), False, False, False),
        (Modalities(), {"modality_n"}, ("head",), False, False, True),
        (Classes(), {"class_n"}, (), False, True, False),
        (Sample(), set(), (), True, False, False),
        (LayerPair(), set(), (), True, False, False),
        (Logits(), set(), ("head",), False, False, False),
        (Keys(), set(), ("head",), False, False, False),
        (Sequences(), {"matrix_entropy"}, (), False, False, True),
        (Sequences(), {"top"}, (), False, False, False),
    ):
        needs = frozenset(needs)
        assert reads.list_axes(needs) == axes
        assert reads.is_of_first_policy(needs) is first
        assert reads.has_roles(needs) is roles
        assert reads.is_of_sequences(needs) is whole
    for reads, needs, message in (
        (vectors, {"moment", "n"}, r"got moment with n\."),
        (heads, {"moment"}, r"got moment at query\..*leave heads out"),
        (heads, {"subset_n"}, r"got subset_n at query\."),
    ):
        with pytest.raises(UsageError, match=message):
            reads.list_axes(frozenset(needs))
    for at in ((), ("hidden", "rows")):
        with pytest.raises(UsageError, match="vectors at some of hidden, final, query"):
            Vectors(at)


def test_what_each_kind_captures():
    layers = frozenset(LAYER_QUANTITIES)
    expected = {
        Vectors(): (layers, 1, True),
        Vectors(("final",)): (layers, 0, True),
        Vectors(("key",)): ({"key"}, 0, False),
        Vectors(("key", "hidden")): ({"key"} | layers, 1, True),
        QueryKey(): ({"query", "key"}, 0, False),
        Sample(): (layers, 1, True),
        LayerPair(): (layers, 2, True),
        Classes(): (layers, 0, True),
        Sequences(): (layers, 1, True),
        Modalities(): (layers, 0, True),
        Logits(): ({"attention"}, 0, False),
        Keys(): ({"extremes"}, 0, False),
        Rows(): ({"attention"}, 0, False),
    }
    for reads, (captured, arrays, of_layers) in expected.items():
        assert (reads.captured, reads.arrays, reads.of_layers) == (
            captured,
            arrays,
            of_layers,
        )
    assert Vectors(("key", "hidden")).described == "vectors: key, hidden"


# ---- samples ---------------------------------------------------------------------------------------------------------


def kept_sample(hashes, **vectors):
    kept = Reservoir(9, 0)
    hashes = torch.tensor(hashes)
    kept._kept = hashes, hashes * 2, {name.replace("_", "."): x for name, x in vectors.items()}  # fmt: skip
    return kept


def test_layers_are_paired_inside_their_stack_and_sample_alone():
    """A decoder's tokens are others than the encoder's; a map of its own length has a sample of its own."""
    names = ("e.1.hidden", "d.1.hidden", "e.2.hidden", "m.1.hidden", "d.final", "m.2.hidden")  # fmt: skip
    sites = []
    for name in names:
        stack, _, rest = name.partition(".")
        layer = None if rest == "final" else int(rest[0])
        sites.append(Site(stack, layer, "final" if layer is None else "hidden"))
    x = {name: torch.full((3, 2), k + 1.0) for k, name in enumerate(names)}
    reservoirs = {
        "e": kept_sample([1, 2, 3], e_1_hidden=x["e.1.hidden"], e_2_hidden=x["e.2.hidden"]),
        "d": kept_sample([4, 5, 6], d_1_hidden=x["d.1.hidden"], d_final=x["d.final"]),
        "m.1.hidden": kept_sample([7, 8, 9], m_1_hidden=x["m.1.hidden"]),
        "m.2.hidden": kept_sample([7, 8], m_2_hidden=x["m.2.hidden"][:2]),
    }  # fmt: skip
    terms = {
        site: {"vector": np.ones((3, 2, 1, 2)) * (k + 1) * 2, "n": np.full((3, 2, 1), 2.0)}
        for k, site in enumerate(sites)
    }  # fmt: skip
    kept = gather(terms, reservoirs=reservoirs)
    pairs = [
        (r.columns["stack"], r.columns["layer"], r.columns["component"])
        for r in LayerPair().readings(None, kept)
    ]
    assert pairs == [("e", 1, "hidden 2"), ("d", 1, "final")]
    alone = list(Sample().readings(None, kept))
    assert [(r.columns["stack"], r.columns["layer"], float(r.count)) for r in alone] == [
        ("e", 1, 3), ("d", 1, 3), ("e", 2, 3), ("m", 1, 3), ("d", 1, 3), ("m", 2, 2),
    ]  # fmt: skip
    for k, reading in enumerate(alone):
        assert set(reading.data.vectors.flatten().tolist()) == {k + 1.0}
        assert reading.data.mean.tolist() == [k + 1.0, k + 1.0]
    assert alone[1].data.group.tolist() == [8 % 3, 10 % 3, 12 % 3]
    assert alone[1].data.groups == 3


def test_a_layer_without_a_usable_vector_takes_no_pair_from_the_others():
    names = ("e.1.hidden", "e.2.hidden", "e.3.hidden")
    x = dict.fromkeys(names, torch.ones(3, 2)) | {names[1]: torch.zeros(3, 2)}
    reservoir = kept_sample([1, 2, 3], **{k.replace(".", "_"): v for k, v in x.items()})
    terms = {"vector": np.ones((3, 1, 1, 2)), "n": np.ones((3, 1, 1))}
    sites = [Site("e", layer, "hidden") for layer in (1, 2, 3)]
    kept = gather(dict.fromkeys(sites, terms), reservoirs={"e": reservoir})
    (pair,) = LayerPair().readings(None, kept)
    assert (pair.columns["layer"], pair.columns["component"]) == (1, "hidden 3")


def test_the_mean_of_a_sample_is_that_of_all_vectors_of_the_first_policy():
    site = Site("e", 1, "hidden")
    vector = np.arange(12.0).reshape(3, 2, 1, 2)
    n = np.array([[[1.0], [9]], [[2], [9]], [[3], [9]]])
    kept = gather({site: {"vector": vector, "n": n}})
    reservoir = kept_sample([1, 2, 3], e_1_hidden=torch.ones(3, 2))
    sample = select_sample(site.name, reservoir, kept)
    assert sample.mean.tolist() == [(0 + 4 + 8) / 6, (1 + 5 + 9) / 6]


# ---- extremes --------------------------------------------------------------------------------------------------------


def test_activations_of_a_sequence():
    """Padding is larger than all; a sequence without real tokens; a median of even number is the lower middle one."""
    x = torch.tensor(
        [
            [[-900.0, 1, 0], [0.5, 200, -0.5], [9999, 9999, 9999]],
            [[9999, 9999, 9999], [9999, 9999, 9999], [0, -2, 1]],
            [[9999, 9999, 9999]] * 3,
            [[0, 0, 5], [0, 0, 1], [0, 0, 7]],
        ]
    )
    real = torch.tensor([[1, 1, 0], [0, 0, 1], [0, 0, 0], [1, 1, 1]], dtype=torch.bool)
    size = x.abs().amax(-1)
    found = {k: v.tolist() for k, v in extremes._sum_activations(x, size, real).items()}
    assert found == {
        "activation_sequences": [1, 1, 0, 1],
        "top": [[900, 200, 1], [2, 1, 0], [0, 0, 0], [7, 5, 1]],
        "median": [0.5, 1, 0, 0],
        "over_median": [1800, 2, 0, 0],
        "over_sequences": [1, 1, 0, 0],
        "massive": [1, 0, 0, 0],
    }


@pytest.mark.parametrize(
    ("largest", "rest", "massive"),
    [(100.0, 0.05, 0), (100.5, 0.05, 1), (1000.0, 1.0, 1), (999.0, 1.0, 0)],
)
def test_what_is_massive_is_large_and_far_above_the_median(largest, rest, massive):
    x = torch.full((1, 3, 3), rest)
    x[0, 1, 1] = -largest
    found = extremes._sum_activations(x, x.abs().amax(-1), torch.ones(1, 3, dtype=torch.bool))  # fmt: skip
    assert found["massive"].item() == massive


@pytest.mark.parametrize("shape", [(2, 5), (5, 2)])
def test_matrix_entropy_of_few_and_many_tokens(shape):
    """By hand from the eigenvalues; padding is not zero; one token has none."""
    tokens, dim = shape
    x = torch.tensor(np.random.default_rng(0).normal(size=(2, tokens + 1, dim)))
    real = torch.ones(2, tokens + 1, dtype=torch.bool)
    real[0, tokens:] = False
    real[1, 1:] = False
    found = extremes._compute_matrix_entropy(x, real)
    singular = np.linalg.svd(x[0, :tokens].numpy(), compute_uv=False) ** 2
    share = singular / singular.sum()
    entropy = -(share * np.log(share)).sum()
    assert found["matrix_entropy"].tolist() == [pytest.approx(entropy), 0]
    normalised = entropy / np.log(min(shape))
    assert found["matrix_entropy_normalised"].tolist() == [pytest.approx(normalised), 0]
    assert found["matrix_sequences"].tolist() == [1, 0]


def masks(real, special=(), punctuation=()):
    real = torch.tensor(real, dtype=torch.bool)
    of = {}
    for name, places in (("special", special), ("punctuation", punctuation)):
        of[name] = torch.zeros_like(real)
        for place in places:
            of[name][place] = True
    return SimpleNamespace(real=real, **of)


def test_each_key_is_of_the_first_kind_that_fits():
    keys = masks(
        [[1, 1, 1, 1, 1, 0], [0, 0, 1, 1, 1, 1], [0, 1, 0, 0, 0, 0], [0] * 6],
        special=[(0, 0), (0, 2), (0, 4), (1, 3)],
        punctuation=[(0, 2), (0, 3), (1, 5), (1, 4)],
    )
    found = extremes._classify_keys(keys).long()
    names = ["first", "last", "special", "punctuation", "other"]
    assert list(extremes.PARTS) == names
    words = [
        [names[parts.index(1)] if 1 in parts else "" for parts in row.T.tolist()]
        for row in found
    ]
    assert words == [
        ["first", "other", "special", "punctuation", "last", ""],
        ["", "", "first", "special", "punctuation", "last"],
        ["", "first", "", "", "", ""],
        [""] * 6,
    ]
    assert found.sum(1).max() == 1


def test_sums_over_keys_by_hand():
    """Two heads; key 3 is padding with mass; the strongest key is seen by enough queries, or is the first."""
    mass = torch.tensor([[[2.0, 7.2, 0.8, 50], [6.0, 1.0, 3.0, 50]]])
    seen = torch.tensor([[[10.0, 8, 1, 9], [20.0, 8, 4, 9]]])
    real = torch.tensor([[True, True, True, False]])
    parts = extremes._classify_keys(masks([[1, 1, 1, 0]]))
    norm = torch.tensor([[[1.0, 2, 6, 900], [4.0, math.inf, 2, 900]]])
    found = extremes._sum_keys(mass, seen, real, parts, norm)
    found = {name: value[0].tolist() for name, value in found.items()}
    assert found["key_sequences"] == [1, 1] == found["sink_sequences"]
    # shares of 10: first, last, special, punctuation, other
    assert found["part_mass"] == [
        pytest.approx([0.2, 0.08, 0, 0, 0.72]),
        pytest.approx([0.6, 0.3, 0, 0, 0.1]),
    ]
    # means: .2, .9, (.8); .3, .125, (.75) in brackets: too few queries
    assert found["strongest"] == pytest.approx([0.9, 0.3])
    assert found["strongest_part"] == [[0, 0, 0, 0, 1], [1, 0, 0, 0, 0]]
    assert found["first_above"] == [[0, 0, 0, 0], [1, 0, 0, 0]]
    assert found["above"] == [[1, 1, 1, 1], [1, 0, 0, 0]]
    # 2 / mean(1, 2, 6); 4 / mean(4, 2), without the one that overflowed
    assert found["value_ratio"] == pytest.approx([2 / 3, 4 / 3])
    assert found["value_sequences"] == [1, 1]


def test_keys_that_nobody_sees_and_values_that_overflow():
    real = torch.tensor([[False, True, True]])
    parts = extremes._classify_keys(masks([[0, 1, 1]]))
    nothing = torch.zeros(1, 1, 3)
    found = extremes._sum_keys(nothing, nothing, real, parts, torch.ones(1, 1, 3))
    assert {name for name, value in found.items() if value.any()} == set()
    # the first key needs one query only; its value overflows
    mass = torch.tensor([[[0.0, 0.5, 0.4]]])
    seen = torch.tensor([[[0.0, 1, 7]]])
    norm = torch.tensor([[[1.0, math.inf, 3]]])
    found = extremes._sum_keys(mass, seen, real, parts, norm)
    assert found["strongest"].item() == pytest.approx(0.5)
    assert found["value_sequences"].item() == found["value_ratio"].item() == 0
    no_length = extremes._sum_keys(mass, seen, real, parts, torch.zeros(1, 1, 3))
    assert no_length["value_sequences"].item() == 0


def test_norms_of_shared_keys_are_repeated_next_to_each_other():
    x = torch.tensor([[[[3.0, 4]], [[0.0, 2]]]], dtype=torch.float16)
    found = extremes._measure_norms(x, 4)
    assert found.dtype == torch.float32
    assert found.tolist() == [[[5], [5], [2], [2]]]


class Running:
    """A measurement of one batch: what keepers add, by site."""

    def __init__(self, real, places=None, **masks):
        self.extremes, self.sums, self.added = Extremes(), Sums(3), {}
        self.settings = SimpleNamespace(flatten="position", groups=3, spectrum_groups=2, at="last")  # fmt: skip
        self.positions = SimpleNamespace(real=real, places=places, **masks)
        self.asked = []

    def find_masks(self, site, _):
        self.asked.append(site)
        return self.positions

    def copy_to(self, item, _):
        return item

    def add_sums(self, site, values):
        self.added.setdefault(site, {}).update(values)

    def find_real_queries(self, _site, _keys):
        return self.positions.real

    def locate_queries(self, _site, _keys):
        return self.positions.places


def places_of(*units, tokens):
    """[sequence, token, 4]: unit, number in it, position, id."""
    return torch.tensor(
        [[[unit, k, k, 100 + k] for k in range(tokens)] for unit in units]
    )


def test_largest_and_smallest_logits_are_of_real_queries_that_see_a_key():
    """Query 0 of the first sequence sees none, query 1 of the second is padding; each head has its own largest."""
    real = torch.tensor([[True, True, True], [True, False, True]])
    running = Running(real, places_of(4, 9, tokens=3))
    value = {
        "keys": torch.tensor([[[0, 2, 3]] * 2, [[1, 2, 3]] * 2]),
        "largest": torch.tensor([[[99.0, 2, 3], [99, 8, -1]], [[1, 99, 5], [7, 99, math.nan]]]),
        "smallest": torch.tensor([[[-99.0, -2, -3], [-99, -8, -1]], [[-1, -99, -5], [-7, -99, -50]]]),
    }  # fmt: skip
    site = Site("decoder", 2, "attention")
    LogitExtremes().add(site, value, running)
    added = {k: v.tolist() for k, v in running.added[site.name].items()}
    assert added == {
        "logit_sequences": [[1, 1], [1, 1]],
        "largest_logit": [[3, 8], [5, 7]],
    }
    kept = running.extremes.at(site.name)
    assert kept["logit"][0].tolist() == [5, 8]
    assert kept["logit"][1].tolist() == [[9, 2, 2, 102], [4, 1, 1, 101]]
    assert kept["negative_logit"][0].tolist() == [5, 8]
    assert kept["negative_logit"][1].tolist() == [[9, 2, 2, 102], [4, 1, 1, 101]]


def test_the_largest_activation_of_each_dimension_is_of_a_real_vector():
    real = torch.tensor([[True, True, False], [True, True, True]])
    running = Running(real, places_of(4, 9, tokens=3))
    x = torch.tensor(
        [
            [[1.0, -7, 3], [2, 0, -3], [99, 99, 99]],
            [[math.inf, 0, 50], [0, 0, 0], [-5, 6, 2]],
        ]
    )
    site = Site("encoder", 1, "hidden")
    SequenceSums(frozenset({"activation_sequences", "median"})).add(site, x, running)
    assert set(running.added[site.name]) == {"activation_sequences", "median"}
    values, where = running.extremes.at(site.name)["activation"]
    assert values.tolist() == [5, 7, 3]
    assert where.tolist() == [[9, 2, 2, 102], [4, 0, 0, 100], [4, 0, 0, 100]]
    other = Running(real, places_of(4, 9, tokens=3))
    SequenceSums(frozenset({"matrix_entropy"})).add(site, x, other)
    assert (
        set(other.added[site.name]) == {"matrix_entropy"} and not other.extremes.terms
    )


def test_longest_queries_and_keys_are_each_of_their_own_tokens():
    """Two query heads share a key head; padding is longer than all."""
    real = torch.tensor([[True, True, False]])
    running = Running(
        real, places_of(6, tokens=3), special=~real & real, punctuation=~real & real
    )
    query = torch.tensor([[[[1.0], [4], [99]], [[7], [2], [99]]]])
    key = torch.tensor([[[[3.0], [2], [99]]]])
    value = {
        "mass": torch.tensor([[[1.0, 1, 0], [2, 0, 0]]]),
        "seen": torch.tensor([[[2.0, 2, 0], [2, 2, 0]]]),
        "query": query, "key": key, "value": key,
    }  # fmt: skip
    site = Site("decoder", 2, "extremes", kind="cross")
    extremes.KeySums().add(site, value, running)
    assert running.asked == [
        Site("decoder", 2, "key", kind="cross"),
        Site("decoder", 2, "query", kind="cross"),
    ]
    kept = running.extremes.at(site.name)
    assert kept["query_norm"][0].tolist() == [4, 7]
    assert kept["query_norm"][1][:, 1].tolist() == [1, 0]
    assert kept["key_norm"][0].tolist() == [3, 3]
    assert kept["key_norm"][1].tolist() == [[6, 0, 0, 100]] * 2
    assert running.added[site.name]["part_mass"][0, :, 0].tolist() == [0.5, 1]


@pytest.mark.parametrize(
    ("groups", "of_spectra", "found"),
    [(3, 2, 2), (3, 5, 3), (3, None, 3), (9, None, 8), (9, 9, 9)],
)
def test_products_of_heads_are_of_counted_vectors_in_few_groups(
    groups, of_spectra, found
):
    """Unit 10 has a vector of zeros, an infinite one, padding, and one that the first policy leaves out."""
    real = torch.tensor([[True, True, True, False], [True, True, True, True]])
    first = real.clone()
    first[1, 0] = False
    running = Running(real, policies=torch.stack([first, real], 1))
    running.settings.groups, running.settings.spectrum_groups = groups, of_spectra
    running.sums, running.group = Sums(groups), torch.tensor([4, 10]) % groups
    x = torch.zeros(2, 2, 4, 2)
    x[0, :, :, 0] = torch.tensor([[1.0, 2, 3, 99], [4, 0, 5, 99]])
    x[1, :, :, 1] = torch.tensor([[90.0, 0, math.inf, 6], [90, 7, 8, 9]])
    site = Site("encoder", 1, "key", "raw")
    VectorSums({"key": frozenset({"head_moment"})}).add(site, x, running)
    moment = running.sums.terms[site.name, "head_moment"]
    count = running.sums.terms[site.name, "head_moment_n"]
    expected, vectors = np.zeros((found, 2, 2, 2)), np.zeros((found, 2))
    for unit, dim, squares, numbers in (
        (4, 0, (14, 41), (3, 2)),
        (10, 1, (36, 194), (1, 3)),
    ):
        expected[unit % groups % found, :, dim, dim] += squares
        vectors[unit % groups % found] += numbers
    np.testing.assert_array_equal(moment, expected)
    np.testing.assert_array_equal(count, vectors)


def test_whole_images_are_summed_once_whatever_the_policies_count():
    real = torch.ones(3, 1, dtype=torch.bool)
    running = Running(real, policies=torch.stack([real, ~real], 1))
    running.settings.flatten, running.group = "image", torch.tensor([1, 9, 2])
    running.sums = Sums(12)
    x = torch.tensor([[[3.0, 4]], [[6, 8]], [[0, 0]]])
    terms = frozenset({"vector", "unit", "unit_square", "norm"})
    VectorSums({"hidden": terms}).add(Site("encoder", 1, "hidden"), x, running)
    kept = {name: total for (_, name), total in running.sums.terms.items()}
    assert set(kept) == {"n", "vector", "unit", "norm", "zero", "nonfinite"}
    # Policy and head have one place each.
    summed = ("n", "vector", "unit", "norm")
    assert {tuple(kept[name].shape[1:3]) for name in summed} == {(1, 1)}
    # Unit 9 of 12 is in group 1 of 8.
    assert kept["n"].flatten().tolist() == [0, 2] + [0] * 10
    assert kept["vector"][1].flatten().tolist() == [9, 12]
    assert kept["unit"][1].flatten().tolist() == pytest.approx([1.2, 1.6])
    assert kept["norm"][1].item() == 15
    assert kept["zero"].flatten().tolist() == [0, 0, 1] + [0] * 9


def test_a_vector_with_one_infinite_number_is_not_usable():
    x = np.array(
        [[1, 0], [0, 0], [math.nan, 1], [2, math.inf], [-math.inf, 0], [1, -1]]
    )
    assert is_usable(x).tolist() == [True, False, False, False, False, True]


def test_tokens_of_images_and_texts_are_summed_apart():
    """Special tokens are of neither kind, whichever side of the mark they are on; nor is padding."""
    real = torch.tensor([[True, True, True, True, False]])
    image = torch.tensor([[False, True, True, False, False]])
    special = torch.tensor([[True, False, False, False, True]])
    running = Running(real, image=image, special=special)
    x = torch.tensor([[[9.0, 0], [3, 4], [0, 2], [5, 0], [7, 7]]])
    site = Site("encoder", 3, "hidden")
    ModalitySums().add(site, x, running)
    added = running.added[site.name]
    assert added["modality_n"].flatten().tolist() == [2, 1]
    found = added["modality_unit"].flatten().tolist()
    assert found == pytest.approx([0.6, 1.8, 1, 0])


def test_rows_of_queries_that_see_no_key_are_left_out_under_their_own_prefix():
    real = torch.tensor([[True, True, False]])
    query = torch.randn(1, 1, 3, 2, generator=torch.Generator().manual_seed(0))
    rows = compute_rows(query, query, real)
    running = Running(real)
    site = Site("encoder", 1, "centred")
    keeper = next(iter(CentredRows().keepers(frozenset())))
    halved = rows | {"keys": rows["keys"] * torch.tensor([1, 0, 1])}
    keeper.add(site, {"plain": rows, "key": halved}, running)
    added = running.added[site.name]
    assert (added["plain.rows"].item(), added["key.rows"].item()) == (2, 1)
    assert added["plain.pairs"].item() == 4
    assert not any(name.startswith("query.") for name in added)


def test_sums_over_rows_and_scores_go_to_their_own_site():
    real = torch.tensor([[True, True, False]])
    query = torch.randn(1, 1, 3, 2, generator=torch.Generator().manual_seed(1))
    rows = compute_rows(query, query, real)
    running = Running(real)
    keeper = next(iter(Rows().keepers(frozenset())))
    keeper.add(Site("decoder", 2, "attention", kind="cross"), rows, running)
    scores = {"rows": torch.ones(1, 1), "key": torch.ones(1, 1, 2)}
    keeper = next(iter(Scores().keepers(frozenset())))
    keeper.add(Site("decoder", 2, "scores"), scores, running)
    assert set(running.added) == {"decoder.2.cross.attention", "decoder.2.scores"}
    assert running.added["decoder.2.scores"] == scores
    added = running.added["decoder.2.cross.attention"]
    assert added["rows"].item() == 2 and added["pairs"].item() == 4
    entropy = rows["entropy"][0, 0, :2].sum()
    assert added["entropy"].item() == pytest.approx(float(entropy))


@pytest.mark.parametrize(
    ("firsts", "special"),
    [(0, [[True] * 3]), (2, [[False, True, True], [False, True]])],
)
def test_only_a_first_token_that_was_given_is_not_special(firsts, special):
    fed = []
    measurement = SimpleNamespace(
        begin=lambda batch, _device: fed.append(batch.streams["encoder"]),
        receive=lambda _site, _x: None,
        end=lambda: None,
    )
    units = (np.ones((3, 2)), np.ones((firsts, 2)))
    vectors._feed_subsets(units, Batching(), measurement)
    found = [
        row[real].tolist()
        for stream in fed
        for row, real in zip(stream.special, stream.mask, strict=True)
    ]
    assert found == special


# ---- test data -------------------------------------------------------------------------------------------------------


def test_drawn_vectors_have_a_mean_of_all_and_one_of_each_unit():
    """Variances by dimension: 0.5² of the common mean, 0.7² of the means of units, 0.6² within a unit."""
    cloud = draw_cloud(3, [4] * 50, 4000)
    assert [x.shape for x in cloud] == [(4, 4000)] * 50
    means = np.stack([x.mean(0) for x in cloud])
    common = means.mean(0)
    within = np.mean([x.var(0, ddof=1) for x in cloud])
    between = means.var(0, ddof=1).mean() - within / 4
    assert within == pytest.approx(0.36, rel=0.05)
    assert between == pytest.approx(0.49, rel=0.05)
    assert np.square(common).mean() - between / 50 == pytest.approx(0.25, rel=0.08)
    other = draw_cloud(4, [4] * 50, 4000)
    assert abs(np.corrcoef(common, np.concatenate(other).mean(0))[0, 1]) < 0.1


def test_the_second_of_a_drawn_pair_is_a_linear_function_of_the_first_and_noise():
    sizes = [300, 500, 400]
    pairs = draw_pairs(3, sizes, 6)
    assert [(len(x), len(y)) for x, y in pairs] == [(n, n) for n in sizes]
    for (x, _), drawn in zip(pairs, draw_cloud(3, sizes, 6), strict=True):
        np.testing.assert_array_equal(x, drawn)
    first, second = (np.concatenate(side) for side in zip(*pairs, strict=True))
    known = np.column_stack([first, np.ones(len(first))])
    way, *_ = np.linalg.lstsq(known, second, rcond=None)
    noise = second - known @ way
    assert noise.std() == pytest.approx(0.5, rel=0.05)
    # The noise is of its own: not that of the first side.
    assert np.abs(np.corrcoef(noise.T, first.T)[:6, 6:]).max() < 0.1
    assert np.square(way[:6]).sum(0).mean() > 0.3
    assert np.abs(way[6]).max() > 0.1
