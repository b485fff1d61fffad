"""Settings in and out: every key, every type, every range, and back from TOML the same."""

import dataclasses
import math
import tomllib
import types
import typing

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as rules
from hypothesis import strategies as st

from covey import catalog
from covey.config import (
    converted,
    flatten,
    names,
    option,
    override,
    own_fields,
    parse_assignments,
    parts,
    read_toml,
    to_toml,
)  # fmt: skip
from covey.errors import UserError


def config(case="dqn", **settings):
    """Of an algorithm, or of an algorithm on a recipe."""
    algo, _, recipe = case.partition("-")
    return catalog.configure(algo, "E-v0", recipe or None, settings=settings, use_presets=False)


CASES = [*catalog.ALGORITHMS, "a2c-a3c"]
FIELDS = [
    (case, section, f)
    for case in CASES
    for section, part in parts(config(case)).items()
    for f in own_fields(part)
    if case in catalog.ALGORITHMS or section == "gradients"  # the others are the same
]


def key_of(section, field):
    return f"{section}.{field.name}" if section else field.name


# names


def test_a_setting_has_a_short_a_dotted_and_a_nested_name():
    for settings in ({"lr": 0.5}, {"dqn.lr": 0.5}, {"dqn": {"lr": 0.5}}):
        assert override(config(), settings).algorithm.lr == 0.5
    for settings in ({"batch": 9}, {"replay.batch": 9}, {"replay": {"batch": 9}}):
        assert override(config(), settings).replay.batch == 9
    assert override(config(), {"steps": 7, "dqn": {"n_step": 2}}).steps == 7


def test_a_changed_configuration_leaves_the_first_as_it_was():
    first = config()
    second = override(first, {"lr": 0.5, "batch": 9, "env_kwargs.g": 1})
    assert first == config()
    assert first != second


def test_the_arguments_of_an_environment_are_merged_by_name_and_replaced_as_a_whole():
    one = override(config(), {"env_kwargs": {"g": 9.8, "deep": {"a": 1}}})
    assert override(one, {"env_kwargs.g": 1}).env_kwargs == {"g": 1, "deep": {"a": 1}}
    assert override(one, {"env_kwargs": {"h": 2}}).env_kwargs == {"h": 2}


def test_one_argument_of_an_environment_may_be_a_table():
    settings = parse_assignments(["env_kwargs.opts={a = 1, b = {c = 2}}"])
    assert override(config(), settings).env_kwargs == {"opts": {"a": 1, "b": {"c": 2}}}


@pytest.mark.parametrize(
    ("algo", "key", "sentence"),
    [
        ("dqn", "lrr", "unknown configuration key 'lrr'. Did you mean 'lr'?"),
        ("dqn", "dqn.lrr", "Did you mean 'dqn.lr'"),
        ("dqn", "replay.bacth", "Did you mean 'replay.batch'"),
        ("dqn", "ppo.lr", "unknown configuration key 'ppo.lr'"),
        ("ppo", "replay.batch", "ppo on the recipe serial has no replay: leave 'replay.batch' out"),
        ("a2c", "gradients.every", "a2c on the recipe serial has no gradients"),
        ("a2c-a3c", "gradients.evry", "Did you mean 'gradients.every'"),
        ("ppo", "batch", "unknown configuration key 'batch'"),
        ("dqn", "algorithm", "unknown configuration key 'algorithm'"),
        ("dqn", "replay", "unknown configuration key 'replay'"),
        ("dqn", "a.b.c", "unknown configuration key 'a.b.c'"),
        ("dqn", "", "unknown configuration key ''"),
    ],
)
def test_an_unknown_key_names_the_nearest(algo, key, sentence):
    with pytest.raises(UserError) as caught:
        override(config(algo), {key: 1})
    assert sentence in str(caught.value)


@pytest.mark.parametrize("algo", CASES)
def test_every_leaf_name_is_unique(algo):
    leaves = [f.name for part in parts(config(algo)).values() for f in own_fields(part)]
    assert len(set(leaves)) == len(leaves)
    assert set(leaves) <= set(names(config(algo)))


@pytest.mark.parametrize(("algo", "section", "field"), FIELDS)
def test_every_field_says_what_it_is(algo, section, field):
    assert field.metadata["doc"].strip()
    assert "\n" not in field.metadata["doc"]


# types


@pytest.mark.parametrize(
    ("value", "kind", "wanted"),
    [
        (1e5, int, 100_000),
        (3, int, 3),
        (2**70, int, 2**70),
        (3, float, 3.0),
        (0.5, float, 0.5),
        (math.inf, float, math.inf),
        (np.float64(0.25), float, 0.25),
        (True, bool, True),
        ("none", float | None, None),
        (None, float | None, None),
        (3, float | None, 3.0),
        ("none", str, "none"),
        ([64, 64], tuple[int, ...], (64, 64)),
        ([1e2, 3], tuple[int, ...], (100, 3)),
        ([], tuple[int, ...], ()),
        ((5,), tuple[int, ...], (5,)),
        ([1, 0.5], tuple[float, ...], (1.0, 0.5)),
        ({"a": 1}, dict[str, typing.Any], {"a": 1}),
    ],
)
def test_values_become_their_fields_type(value, kind, wanted):
    found = converted("key", value, kind)
    assert (found, type(found)) == (wanted, type(wanted))


@pytest.mark.parametrize(
    ("value", "kind", "sentence"),
    [
        (True, int, "key = True must be a whole number."),
        (1.5, int, "key = 1.5 must be a whole number."),
        (math.inf, int, "must be a whole number"),
        (math.nan, int, "must be a whole number"),
        ("3", int, "must be a whole number"),
        (None, int, "must be a whole number"),
        (False, float, "must be a number"),
        (math.nan, float, "must be a number"),
        (math.nan, float | None, "must be a number"),
        ("much", float | None, "must be a number"),
        (1, bool, "must be true or false"),
        ("true", bool, "must be true or false"),
        (3, str, "must be a text"),
        (None, str, "must be a text"),
        (64, tuple[int, ...], "must be a list of whole numbers"),
        (0.5, tuple[float, ...], "must be a list of numbers"),
        (["x"], tuple[float, ...], "must be a number"),
        ("64", tuple[int, ...], "must be a list of whole numbers"),
        ([0.5], tuple[int, ...], "must be a whole number"),
        ([[1]], tuple[int, ...], "must be a whole number"),
        ([True], tuple[int, ...], "must be a whole number"),
    ],
)
def test_values_of_another_type_are_refused(value, kind, sentence):
    with pytest.raises(UserError) as caught:
        converted("key", value, kind)
    assert sentence in str(caught.value)


def test_a_value_of_another_type_for_a_table_says_what_it_wants():
    with pytest.raises(UserError, match=r"env_kwargs = 3 must be a (table|dict|mapping)"):
        override(config(), {"env_kwargs": 3})


# ranges


def bounds(field):
    meta = field.metadata
    return meta["above"], meta["least"], meta["most"]


def kind_of(algo, section, field):
    """The type of one number, and whether the field is a list of them."""
    part = parts(config(algo))[section]
    kind = typing.get_type_hints(type(part))[field.name]
    if isinstance(kind, types.UnionType):
        kind = next(k for k in kind.__args__ if k is not types.NoneType)
    listed = typing.get_origin(kind) is tuple
    return (typing.get_args(kind)[0] if listed else kind), listed


@pytest.mark.parametrize(("algo", "section", "field"), FIELDS)
def test_every_bound_holds_and_is_said(algo, section, field):
    above, least, most = bounds(field)
    key, (kind, listed) = key_of(section, field), kind_of(algo, section, field)
    wrong, right = [], []
    if above > -math.inf:
        wrong += [(above, above), (above - 1, above)]
        right += [above + 1]
    if least > -math.inf:
        wrong += [(least - 1, least), (least - 0.001, least) if kind is float else (-5, least)]
        right += [least]
    if most < math.inf:
        wrong += [(most + 1, most)]
        right += [most]
    as_given = (lambda v: [v]) if listed else (lambda v: v)
    for value, bound in wrong:
        with pytest.raises(UserError) as caught:
            override(config(algo), {key: as_given(value)})
        said = str(caught.value)
        assert said.startswith(f"{key} = {value:g} is out of range")
        assert f"{bound:g}" in said
    for value in right:
        part = parts(override(config(algo), {key: as_given(value)}))[section]
        found = getattr(part, field.name)
        assert found == ((value,) if listed else value)


@pytest.mark.parametrize(("algo", "section", "field"), FIELDS)
def test_every_whole_number_has_a_lower_bound(algo, section, field):
    above, least, _ = bounds(field)
    if kind_of(algo, section, field)[0] is int:
        assert max(above, least) > -math.inf


@pytest.mark.parametrize(("algo", "section", "field"), FIELDS)
def test_every_default_is_in_its_own_range(algo, section, field):
    default = getattr(parts(config(algo))[section], field.name)
    changed = override(config(algo), {key_of(section, field): default})
    assert changed == config(algo)


@pytest.mark.parametrize(("algo", "section", "field"), FIELDS)
def test_every_choice_is_taken_and_others_are_not(algo, section, field):
    key = key_of(section, field)
    for choice in field.metadata["choices"]:
        assert override(config(algo), {key: choice})
    if field.metadata["choices"]:
        with pytest.raises(UserError, match="is unknown"):
            override(config(algo), {key: "other"})


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"batch": 70, "capacity": 50, "warmup": 1}, "replay.batch = 70 is larger than replay.cap"),
        ({"warmup": 70, "capacity": 64}, "learning would never start"),
    ],
)
def test_values_that_do_not_go_together(settings, sentence):
    with pytest.raises(UserError, match=sentence):
        config("dqn", **settings)


# to a file and back

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
PLAIN = st.one_of(st.booleans(), st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False), TEXT)
VALUES = st.recursive(
    PLAIN, lambda v: st.one_of(st.lists(v, max_size=3), st.dictionaries(TEXT, v, max_size=3)),
    max_leaves=6,
)  # fmt: skip


def again(config, comments=False):
    """Through TOML into the defaults of the same algorithm."""
    read = tomllib.loads(to_toml(config, comments))
    first = catalog.configure(config.algo, "other", config.recipe, use_presets=False)
    return override(first, read)


@pytest.mark.parametrize("algo", catalog.ALGORITHMS)
@rules(max_examples=20, deadline=None, derandomize=True, database=None)
@given(
    lr=st.floats(1e-12, 1e6), hidden=st.lists(st.integers(1, 10**6), max_size=4),
    until=st.none() | st.floats(-1e9, 1e9), steps=st.integers(1, 2**60),
    kwargs=st.dictionaries(TEXT, VALUES, max_size=3), device=TEXT, normalize=st.booleans(),
)  # fmt: skip
def test_a_configuration_comes_back_from_toml_the_same(
    algo, lr, hidden, until, steps, kwargs, device, normalize
):
    first = config(
        algo, lr=lr, hidden=hidden, until=until, steps=steps, device=device, normalize=normalize
    )
    first = dataclasses.replace(first, env_kwargs=kwargs)
    assert again(first) == first
    assert again(first, comments=True) == first


def test_the_settings_of_an_owner_come_back_too():
    first = config("a2c-a3c", every=3, max_lag=7, workers=5)
    assert (first.gradients.every, first.gradients.max_lag) == (3, 7)
    assert again(first) == first


@pytest.mark.parametrize(
    "text",
    ["", 'a "quoted" one', "back\\slash", "# no comment", "line\nline", "tab\t", "ünï", "☃", "😀",
     "\x7f", "\x00", "]\n[dqn]\nlr = 9", "'''"],
)  # fmt: skip
def test_any_text_comes_back_from_toml(text):
    first = config(env_kwargs={text: text, "deep": {"list": [text, {text: 1}]}}, device=text)
    assert again(first) == first


def test_numbers_of_numpy_are_written_as_numbers():
    kwargs = {"g": np.float64(9.8), "n": np.int64(3), "f": np.float32(0.5), "b": np.bool_(True)}
    found = again(config(env_kwargs=kwargs)).env_kwargs
    assert found == {"g": 9.8, "n": 3, "f": 0.5, "b": True}


@pytest.mark.parametrize("value", [None, object(), len, {1, 2}, b"bytes"])
def test_what_toml_cannot_say_is_refused_in_a_sentence(value):
    with pytest.raises(UserError, match="cannot be written to a configuration file"):
        to_toml(config(env_kwargs={"x": value}))


def test_comments_say_what_each_value_means():
    text = to_toml(config(), comments=True)
    for part in parts(config()).values():
        for f in own_fields(part):
            if f.name != "env_kwargs":
                (line,) = [t for t in text.splitlines() if t.lstrip("# ").startswith(f"{f.name} ")]
                assert line.endswith(f"  # {f.metadata['doc']}")
    assert "#" not in to_toml(config(until=3))


# from words and files


def test_assignments_are_toml_or_else_text():
    words = ["lr=1e-3", "hidden=[64, 32]", "double=false", "activation=tanh", "until=none",
             'name="quoted = x"', "url=a=b", "empty=", "env_kwargs.g=9.8",
             "when=2020-01-01x"]  # fmt: skip
    assert parse_assignments(words) == {
        "lr": 1e-3, "hidden": [64, 32], "double": False, "activation": "tanh", "until": "none",
        "name": "quoted = x", "url": "a=b", "empty": "", "env_kwargs.g": 9.8, "when": "2020-01-01x",
    }  # fmt: skip


@pytest.mark.parametrize("word", ["lr", "", "=3", "lr:3"])
def test_what_is_no_assignment_is_told(word):
    with pytest.raises(UserError, match="is not name=value"):
        parse_assignments([word])


def test_nested_tables_are_dotted_keys():
    nested = {"a": 1, "dqn": {"lr": 2, "x": {"y": 3}}, "env_kwargs": {"k": {"l": 4}}}
    assert dict(flatten(nested)) == {
        "a": 1,
        "dqn.lr": 2,
        "dqn.x.y": 3,
        "env_kwargs": {"k": {"l": 4}},
    }


@pytest.mark.parametrize(
    ("content", "sentence"),
    [(None, "cannot read .*No such file"), (b"a = ", "is not valid TOML"), (b"\xff", "not UTF-8"),
     (b"a = " + b"[" * 5000, "is not valid TOML"), (b"a=1\na=2", "is not valid TOML")],
)  # fmt: skip
def test_a_file_that_cannot_be_read_is_told(content, sentence, tmp_path):
    file = tmp_path / "c.toml"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(UserError, match=sentence):
        read_toml(file)


def test_a_table_as_a_default_is_each_configurations_own():
    one, two = config(), config()
    assert one.env_kwargs is not two.env_kwargs
    made = dataclasses.make_dataclass("C", [("d", dict, option({"a": 1}, "doc"))])
    assert made().d is not made().d
