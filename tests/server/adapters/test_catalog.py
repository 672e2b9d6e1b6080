"""What adapters there are, and which list the fields of a request ask for, without HTTP, memory or files."""

from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from server.adapters.catalog import (
    AdapterCatalog,
    AdapterChoice,
    AdapterEntry,
    AdapterListError,
    AdapterSource,
    NameRefused,
    shortest,
)
from server.errors import BodyInvalid, ModelUnknown


def make_catalog(
    names: Iterable[str] = ("tone", "facts", "late"), *, are_names_expected: bool = False
) -> AdapterCatalog:
    """A catalog for a model of two names; the second adapter is at 0.5."""
    catalog = AdapterCatalog(("fake", "other"), are_names_expected=are_names_expected)
    for index, name in enumerate(names):
        catalog.add(name, f"{name}.gguf", AdapterSource.COMMAND_LINE, is_pinned=True, scale=0.5 * (index == 1))
    return catalog


@pytest.fixture
def catalog() -> AdapterCatalog:
    return make_catalog()


def asked(catalog: AdapterCatalog, lora: object = None, model: str | None = None) -> list[tuple[str, float]]:
    """The list that a request gets, by name."""
    return [(entry.name, scale) for entry, scale in catalog.resolve(lora, model)]


# `lora`.


def test_absent_and_empty_lists_are_the_current_scales(catalog: AdapterCatalog) -> None:
    assert asked(catalog) == asked(catalog, []) == asked(catalog, None, "fake") == [("facts", 0.5)]


def test_a_list_is_complete(catalog: AdapterCatalog) -> None:
    assert asked(catalog, [{"id": 2, "scale": 1}, {"id": 0, "scale": -0.0}]) == [("late", 1.0)]
    assert asked(catalog, [{"id": 0}]) == []


def test_of_a_repeated_adapter_the_last_wins_and_the_order_means_nothing(catalog: AdapterCatalog) -> None:
    lora = [{"id": 2, "scale": 1}, {"name": "tone", "scale": 2}, {"name": "late", "scale": -3}]
    assert asked(catalog, lora) == [("tone", 2.0), ("late", -3.0)]


def test_scales_are_rounded_to_float32(catalog: AdapterCatalog) -> None:
    [(_, scale)] = asked(catalog, [{"id": 0, "scale": 0.3}])
    assert scale != 0.3
    assert shortest(scale) == 0.3
    assert asked(catalog, [{"id": 0, "scale": 1e-60}]) == []


@pytest.mark.parametrize(
    ("element", "place", "part"),
    [
        ({"name": "nobody"}, "lora[0].name", "there are fake, other, tone, facts, late"),
        ({"name": 5}, "lora[0].name", "5"),
        ({"name": ""}, "lora[0].name", "the name of an adapter"),
        ({"name": "fake"}, "lora[0].name", "the name of an adapter"),
        ({"name": "tone", "id": 1}, "lora[0].id", "must be 0, the id of 'tone'"),
        ({"name": "tone", "id": 7}, "lora[0].id", "0 to 2"),
        ({}, "lora[0].id", "null"),
    ],
)
def test_a_wrong_element_is_named(catalog: AdapterCatalog, element: object, place: str, part: str) -> None:
    with pytest.raises(AdapterListError) as error:
        catalog.resolve([element], None)
    assert error.value.field == place
    assert part in str(error.value)


def test_a_name_and_its_id_may_stand_together(catalog: AdapterCatalog) -> None:
    assert asked(catalog, [{"name": "facts", "id": 1, "scale": 2}]) == [("facts", 2.0)]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["id", "name", "scale", "x"]), inner),
    max_leaves=12,
)
elements = st.fixed_dictionaries(
    {},
    optional={
        "id": st.integers(-1, 4) | json_values,
        "name": st.sampled_from(["tone", "facts", "late", "nobody"]) | json_values,
        "scale": st.floats() | json_values,
    },
)


def choice_or_field(catalog: AdapterCatalog, lora: object) -> AdapterChoice | str:
    """The list, or the place in `lora` that is refused."""
    try:
        return catalog.resolve(lora, None)
    except AdapterListError as error:
        return error.field


@settings(deadline=None)
@given(st.lists(elements, max_size=4) | json_values)
def test_any_json_is_a_list_or_is_refused_and_named(lora: object) -> None:
    catalog = make_catalog()
    choice = choice_or_field(catalog, lora)
    if isinstance(choice, str):
        assert choice.startswith("lora")
        return
    if not lora:
        assert choice == catalog.current
        return
    assert isinstance(lora, list)
    wanted: dict[AdapterEntry, float] = {}
    for element in lora:
        entry = catalog.entries[element["id"]] if element.get("name") is None else catalog.named(element["name"])
        assert entry is not None
        wanted[entry] = element.get("scale") or 0.0
    assert all(scale != 0 for _, scale in choice)
    assert {entry: pytest.approx(scale, rel=1e-6) for entry, scale in choice} == {
        entry: scale for entry, scale in wanted.items() if entry in dict(choice)
    }
    assert all(abs(wanted[entry]) < 1e-38 for entry in wanted.keys() - dict(choice).keys())


# The current scales.


def test_new_scales_are_for_later_requests(catalog: AdapterCatalog) -> None:
    before = catalog.resolve(None, None)
    catalog.set_scales([{"id": 0, "scale": 3}])
    assert [(entry.name, scale) for entry, scale in before] == [("facts", 0.5)]
    assert asked(catalog) == [("tone", 3.0)]
    assert [catalog.scale_of(entry) for entry in catalog.entries] == [3.0, 0.0, 0.0]


def test_a_list_that_is_refused_in_its_middle_changes_nothing(catalog: AdapterCatalog) -> None:
    with pytest.raises(AdapterListError):
        catalog.set_scales([{"id": 0, "scale": 3}, {"id": 9, "scale": 1}])
    with pytest.raises(BodyInvalid):
        catalog.set_scales({"id": 0, "scale": 3})
    assert asked(catalog) == [("facts", 0.5)]


# `model`.


@pytest.mark.parametrize("model", ["late", "fake:late", "other:late"])
def test_a_name_is_scale_one_alone_behind_any_name_of_the_base_too(catalog: AdapterCatalog, model: str) -> None:
    assert asked(catalog, None, model) == [("late", 1.0)]
    assert catalog.chosen_name(None, model) == catalog.chosen_name([], model) == model


def test_a_list_goes_before_a_name(catalog: AdapterCatalog) -> None:
    lora = [{"id": 0, "scale": 2}]
    assert asked(catalog, lora, "late") == [("tone", 2.0)]
    assert catalog.chosen_name(lora, "late") is None


@pytest.mark.parametrize("model", ["support", "fake:support"])
def test_a_mix_is_its_list(catalog: AdapterCatalog, model: str) -> None:
    catalog.define_mix("support", [("late", 0.7), ("tone", -0.5), ("facts", 0.0)])
    assert [(name, shortest(scale)) for name, scale in asked(catalog, None, model)] == [("tone", -0.5), ("late", 0.7)]
    assert catalog.chosen_name(None, model) == catalog.chosen_name([], model) == model


def test_an_unknown_name_is_the_current_scales_where_names_are_not_how_adapters_are_chosen() -> None:
    catalog = make_catalog()
    assert asked(catalog, None, "gpt-4") == asked(catalog, None, "a:tone") == [("facts", 0.5)]
    assert [catalog.chosen_name(None, model) for model in ("gpt-4", "fake", None)] == [None, None, None]


@pytest.mark.parametrize("model", ["fake:gpt-4", "fake:", "other:tone,facts", "fake:fake"])
def test_behind_the_base_an_unknown_name_is_always_an_error(catalog: AdapterCatalog, model: str) -> None:
    with pytest.raises(ModelUnknown, match=f"`{model}` does not exist; there are fake, other, tone"):
        catalog.resolve(None, model)
    with pytest.raises(ModelUnknown):
        catalog.resolve([{"id": 0, "scale": 1}], model)


@pytest.mark.parametrize("reason", ["names", "mix", "removed"])
def test_an_unknown_name_is_an_error_where_names_are_how_adapters_are_chosen(reason: str) -> None:
    catalog = make_catalog(are_names_expected=reason == "names")
    if reason == "mix":
        catalog.define_mix("support", [("tone", 1)])
    if reason == "removed":
        catalog.remove(catalog.entries[0])
    unknown = "tone" if reason == "removed" else "gpt-4"
    with pytest.raises(ModelUnknown, match=unknown):
        catalog.resolve(None, unknown)
    assert asked(catalog, None, "fake") == [("facts", 0.5)]


def test_the_base_of_a_name_may_hold_a_colon() -> None:
    catalog = AdapterCatalog(("a", "a:b"))
    catalog.add("c", "c.gguf", AdapterSource.COMMAND_LINE)
    assert asked(catalog, None, "a:b:c") == asked(catalog, None, "a:c") == [("c", 1.0)]
    assert asked(catalog, None, "a:b") == []
    with pytest.raises(ModelUnknown):
        catalog.resolve(None, "a:b:d")


# Entries come and go.


def test_ids_are_never_used_again(catalog: AdapterCatalog) -> None:
    catalog.remove(catalog.entries[1])
    entry = catalog.add("facts", "again.gguf", AdapterSource.RUN_TIME)
    assert (entry.id, entry.is_pinned, catalog.scale_of(entry)) == (3, False, 0.0)
    assert [each.id for each in catalog.entries] == [0, 2, 3]
    assert asked(catalog) == []
    with pytest.raises(AdapterListError, match="0, 2 to 3"):
        catalog.resolve([{"id": 1}], None)
    assert asked(catalog, None, "facts") == [("facts", 1.0)]


def test_another_file_takes_the_place_of_an_adapter(catalog: AdapterCatalog) -> None:
    old = catalog.entries[1]
    new = catalog.prepare("facts", "new.gguf")
    assert catalog.current == ((old, 0.5),)
    assert catalog.put(new) is old
    assert new is not old
    assert new != old
    assert (new.id, new.name, new.path, catalog.scale_of(new)) == (1, "facts", "new.gguf", 0.5)
    assert catalog.current == ((new, 0.5),)
    assert [entry.name for entry in catalog.entries] == ["tone", "facts", "late"]


def test_of_two_new_adapters_of_one_name_the_first_that_is_ready_gets_it(catalog: AdapterCatalog) -> None:
    other, first, second = catalog.prepare("slow", "s"), catalog.prepare("new", "a"), catalog.prepare("new", "b")
    assert catalog.put(second) is None
    with pytest.raises(NameRefused, match="'new'"):
        catalog.put(first)
    catalog.put(other)
    assert [(entry.id, entry.path) for entry in catalog.entries[3:]] == [(3, "s"), (5, "b")]


@pytest.mark.parametrize(
    "name",
    ["", " tone", "a,b", "a\nb", "x" * 257, "fake", "other", "base", "fake:x", "tone", "support"],
)
def test_a_name_that_cannot_be_an_adapters_is_refused(catalog: AdapterCatalog, name: str) -> None:
    catalog.define_mix("support", [("tone", 1.0)])
    with pytest.raises(NameRefused):
        catalog.add(name, "x", AdapterSource.RUN_TIME)
    assert len(catalog.entries) == 3
    if name != "support":
        with pytest.raises(NameRefused):
            catalog.define_mix(name, [("tone", 1.0)])


@pytest.mark.parametrize(
    "parts", [[], [("nobody", 1.0)], [("tone", 1.0), ("tone", 2.0)], [("tone", float("nan"))], [("support", 1.0)]]
)
def test_a_mix_that_cannot_be_is_refused_and_the_old_one_stays(
    catalog: AdapterCatalog, parts: list[tuple[str, float]]
) -> None:
    catalog.define_mix("support", [("tone", 1.0)])
    with pytest.raises(ValueError, match=r"support|finite"):
        catalog.define_mix("support", parts)
    assert asked(catalog, None, "support") == [("tone", 1.0)]


def test_a_mix_waits_for_an_adapter_that_is_gone(catalog: AdapterCatalog) -> None:
    catalog.define_mix("support", [("tone", 1.0), ("late", 2.0)])
    catalog.remove(catalog.entries[2])
    with pytest.raises(ModelUnknown, match="`support` needs the adapter `late`"):
        catalog.resolve(None, "support")
    catalog.add("late", "again.gguf", AdapterSource.RUN_TIME)
    assert asked(catalog, None, "support") == [("tone", 1.0), ("late", 2.0)]
    catalog.remove_mix("support")
    with pytest.raises(ModelUnknown):
        catalog.resolve(None, "support")


def test_new_adapters_are_found_by_name_once_and_at_scale_0() -> None:
    asked_for = []

    def find(name: str) -> str | None:
        asked_for.append(name)
        return f"folder/{name}" if name in ("new", "fake", "fake:new") else None

    catalog = AdapterCatalog(("fake",), find=find, are_names_expected=True)
    assert asked(catalog, None, "new") == asked(catalog, [{"name": "new", "scale": 1}]) == [("new", 1.0)]
    assert asked(catalog) == asked(catalog, None, "fake") == []
    [entry] = catalog.entries
    assert (entry.path, entry.source, entry.is_pinned) == ("folder/new", AdapterSource.FOLDER, False)
    catalog.remove(entry)
    with pytest.raises(ModelUnknown):
        catalog.resolve(None, "new")
    with pytest.raises(ModelUnknown):
        catalog.resolve(None, "fake:new")
    assert asked_for == ["new"]


def test_another_base_shares_what_there_is(catalog: AdapterCatalog) -> None:
    other = catalog.with_base(["big"])
    catalog.add("new", "new.gguf", AdapterSource.RUN_TIME)
    other.set_scales([{"name": "new", "scale": 2}])
    other.define_mix("both", [("new", 1), ("tone", 1)])
    assert asked(catalog) == asked(other) == [("new", 2.0)]
    assert asked(catalog, None, "both") == [("tone", 1.0), ("new", 1.0)]
    assert asked(other, None, "big:tone") == asked(catalog, None, "fake:tone") == [("tone", 1.0)]
    assert next(catalog.load_ids) != next(other.load_ids)
    with pytest.raises(NameRefused, match="'tone'"):
        catalog.with_base(["tone"])


@settings(deadline=None)
@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_the_shortest_decimal_is_the_same_float32(scale: float) -> None:
    catalog = make_catalog()
    catalog.set_scales([{"id": 0, "scale": shortest(scale)}])
    assert catalog.scale_of(catalog.entries[0]) == scale
