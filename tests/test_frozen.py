"""`frozen` makes of a class what `dataclass(frozen=True, slots=True)` makes of it."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from dataclasses import FrozenInstanceError, asdict, dataclass, field, fields, replace
from functools import cached_property
from typing import Any, ClassVar
from weakref import ref

import msgspec
import pytest

from traceq.frozen import frozen


def standard(cls: type[Any]) -> type[Any]:
    return dataclass(frozen=True, slots=True)(cls)


def point(decorator: Callable[[type[Any]], type[Any]]) -> type[Any]:
    class Point:
        """A class with all kinds of fields that there are."""

        x: int
        name: str = "origin"
        seen: list[int] = field(default_factory=list)
        unit: str = field(default="m", metadata={"title": "unit"})
        note: str = field(default="", compare=False)

        @property
        def double(self) -> int:
            return 2 * self.x

    return decorator(Point)


@frozen
class Span:
    start: int
    end: int = 7

    def __post_init__(self) -> None:
        if self.end < self.start:
            raise ValueError(f"ends before {self.start}")


@frozen(eq=False)
class Columns:
    rows: tuple[int, ...]


def test_no_signature_is_parsed_for_a_class_without_a_docstring() -> None:
    assert Span.__doc__ == "Span"
    assert (point(frozen).__doc__ or "").startswith("A class")


@frozen(eq=False, slots=False)
class Line:
    start: int

    @cached_property
    def end(self) -> list[int]:
        return [self.start]


@frozen(eq=False, weakref_slot=True)
class Referred:
    start: int


@frozen
class Shown:
    text: str

    def __repr__(self) -> str:
        return f"<{self.text}>"


@pytest.mark.parametrize(
    "what",
    [
        lambda cls: repr(cls(1)).rpartition(".")[2],
        lambda cls: repr(cls(1, "a", [3], unit="s")).rpartition(".")[2],
        lambda cls: asdict(cls(x=4, seen=[1])),
        lambda cls: replace(cls(1), x=5, seen=[6]).double,
        lambda cls: [(each.name, each.default, dict(each.metadata)) for each in fields(cls)],
        lambda cls: (cls.__slots__, cls.__match_args__, cls.__doc__, hasattr(cls(1), "__dict__")),
        lambda cls: (cls(1) == cls(1), cls(1) == cls(2), cls(1) == 1, cls(1) != cls(1), cls(1) == cls(1, note="a")),
        lambda cls: hash(cls(1, seen=())) == hash(cls(1, seen=(), note="a")),
        lambda cls: copy.deepcopy(cls(1, seen=[2])) == cls(1, seen=[2]),
        lambda cls: msgspec.json.encode(cls(1)),
        lambda cls: msgspec.json.decode(b'{"x": 3}', type=cls).seen,
    ],
)
def test_it_does_what_a_standard_dataclass_does(what: Callable[[type[Any]], object]) -> None:
    assert what(point(frozen)) == what(point(standard))


@pytest.mark.parametrize("change", [lambda it: setattr(it, "x", 2), lambda it: delattr(it, "x")])
def test_instances_refuse_changes(change: Callable[[Any], None]) -> None:
    for decorator in (frozen, standard):
        instance = point(decorator)(1)
        with pytest.raises(FrozenInstanceError, match="'x'"):
            change(instance)
        assert instance.x == 1


def test_each_instance_has_its_list() -> None:
    made = point(frozen)
    made(1).seen.append(2)
    assert made(1).seen == []


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(TypeError, match=r"Span.__init__\(\) misses 'start'"):
        Span()  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"Span.__init__\(\) misses 'start'"):
        Span(begin=1)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"Span.__init__\(\) does not take begin"):
        Span(1, 2, begin=1)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"Span.__init__\(\) does not take start"):
        Span(1, start=1)  # type: ignore[misc]
    with pytest.raises(TypeError, match=r"Span.__init__\(\) does not take 3 values"):
        Span(1, 2, 3)  # type: ignore[call-arg]
    with pytest.raises(ValueError, match="ends before 8"):
        Span(8)


def test_instances_travel_between_processes() -> None:
    assert pickle.loads(pickle.dumps(Span(1, 2))) == Span(1, 2)


def test_columns_are_equal_only_to_themselves() -> None:
    columns = Columns((1,))
    assert columns == columns
    assert columns != Columns((1,))
    assert hash(columns) != hash(Columns((1,)))


def test_without_slots_what_follows_from_the_fields_is_kept() -> None:
    line = Line(3)
    assert line.end is line.end
    assert pickle.loads(pickle.dumps(line)).end == [3]
    with pytest.raises(FrozenInstanceError, match="'start'"):
        line.start = 4  # type: ignore[misc]


def test_an_instance_can_be_referred_to_weakly() -> None:
    instance = Referred(1)
    assert ref(instance)() is instance


def test_a_repr_of_the_class_itself_stays() -> None:
    assert repr(Shown("x")) == "<x>"


@frozen
class Labelled(Span):
    UNIT: ClassVar[str] = "us"

    label: str = ""

    @property
    def title(self) -> str:
        return f"{self.label} {self.start} {self.UNIT}"


def test_a_base_and_what_belongs_to_the_class_are_kept() -> None:
    assert [each.name for each in fields(Labelled)] == ["start", "end", "label"]
    assert Labelled.__slots__ == ("label",)
    assert Labelled(1, label="step").title == "step 1 us"
    assert replace(Labelled(1), label="b") == Labelled(1, 7, "b") != Span(1)


def test_a_standard_dataclass_can_be_derived() -> None:
    @dataclass
    class Named(Line):
        name: str = ""

    assert [each.name for each in fields(Named)] == ["start", "name"]


def test_a_class_within_another_keeps_its_name() -> None:
    class Outer:
        @frozen
        class Inner:
            start: int

    assert Outer.Inner.__qualname__.endswith("Outer.Inner")
    assert repr(Outer.Inner(1)).endswith("Outer.Inner(start=1)")


def test_a_mutable_default_is_refused() -> None:
    for decorator in (frozen, standard):
        with pytest.raises(ValueError, match="list"):
            decorator(type("Shared", (), {"__annotations__": {"rows": "list"}, "rows": []}))
