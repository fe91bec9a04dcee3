"""The user's own classes: made again only when declared, and never changed in silence."""

import collections
import enum
from dataclasses import dataclass, field
from typing import Annotated, Any, Generic, Literal, NamedTuple, TypedDict, TypeVar

import pytest
from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, RootModel, field_validator
from pydantic.dataclasses import dataclass as pydantic_dataclass

from perdure.core.codec import UndeclaredTypeWarning, decode, encode, notices, record
from perdure.errors import SerializationError

T = TypeVar("T")


class Color(enum.Enum):
    RED = "red"
    PAIR = (1, "a")


class Level(enum.IntEnum):
    LOW = 1


class Mode(enum.StrEnum):
    FAST = "fast"


class Access(enum.Flag):
    READ = 1
    WRITE = 2


@dataclass
class Item:
    name: str
    price: float = 0.0
    total: float = field(init=False)
    level: Level = Level.LOW

    def __post_init__(self) -> None:
        self.total = self.price * 2


@dataclass(frozen=True, slots=True)
class Point:
    x: int
    y: tuple[int, ...] = ()


@dataclass(slots=True, kw_only=True)
class Node:
    value: Any
    children: list["Node"] = field(default_factory=list)


@dataclass
class Derived:
    x: int

    def __post_init__(self) -> None:
        self.cached = {"x": self.x}


@dataclass
class Box(Generic[T]):
    content: T


@pydantic_dataclass
class Checked:
    n: int


class Pair(NamedTuple):
    left: int
    right: Point | None = None


class Shape(BaseModel):
    kind: Color


class Circle(Shape):
    radius: float = Field(alias="r", default=1.0)


class Secretive(BaseModel):
    a: int
    _seen: list[int] = PrivateAttr(default_factory=list)


class Open(BaseModel):
    model_config = ConfigDict(extra="allow")
    a: int = 1


class Names(RootModel[list[str]]):
    pass


class Tree(BaseModel):
    point: Point
    shapes: list[Circle | Shape]
    items: dict[str, Item] = {}
    anything: Any = None


class Generic1(BaseModel, Generic[T]):
    content: T


class Bag(TypedDict):
    point: Point


class Outer:
    class Inner(enum.Enum):
        A = 1

    @dataclass
    class Data:
        inner: "Outer.Inner"


def secretive() -> Secretive:
    made = Secretive(a=1)
    made._seen.append(7)
    return made


CASES = [
    (Color.RED, Color),
    (Color.PAIR, Color | None),
    (Level.LOW, Level),
    (Mode.FAST, Mode),
    (Access.READ | Access.WRITE, Access),
    ({Level.LOW: {Mode.FAST}}, dict[Level, set[Mode]]),
    (Color.RED, Literal[Color.RED]),
    (Item("a", 2.0), Item),
    (Item("a", 3), Item),  # an int in a float field stays an int
    (Point(1, (2,)), Point),
    ([Point(1), None], list[Point | None]),
    ((Point(1), 2), tuple[Point, int]),
    ({Point(1)}, set[Point]),
    ({"a": Point(1)}, dict[str, Point]),
    (Node(value=(1,), children=[Node(value=2)]), Node),
    (Derived(3), Derived),
    (Box[int](3), Box[int]),
    (Box(Point(1)), Box[Point]),
    (Checked(3), Checked),
    (Pair(1), Pair),
    (Pair(1, Point(2)), list[Pair] | Pair),
    (Shape(kind=Color.RED), Shape),
    (Circle(kind=Color.RED, r=2), Shape | Circle),
    (Circle(kind=Color.RED), Circle),
    (secretive(), Secretive),
    (Open(a=2, b=(1,), c={"$d": 1}), Open),
    (Names(["a"]), Names),
    (Generic1[int](content=1), Generic1[int]),
    (Generic1[Point](content=Point(1)), Generic1[Point]),
    (
        Tree(point=Point(1), shapes=[Circle(kind=Color.RED), Shape(kind=Color.PAIR)], items={"i": Item("b")}),
        Annotated[Tree, "x"],
    ),
    ({"point": Point(1)}, Bag),
    (Outer.Data(Outer.Inner.A), Outer.Data),
]


@pytest.mark.parametrize(("value", "declared"), CASES, ids=range(len(CASES)))
def test_declared_classes_come_back(value, declared):
    text, back = record(value, declared)
    assert back == value
    assert type(back) is type(value)
    assert encode(decode(text, declared)) == text


def test_exact_members_of_a_union():
    """Two classes with the same fields are told apart, which their data alone would not allow."""

    @dataclass
    class Cat:
        name: str

    @dataclass
    class Dog:
        name: str

    assert type(decode(encode(Dog("x")), Cat | Dog)) is Dog
    assert type(decode(encode(Cat("x")), Dog | Cat)) is Cat


def test_constructors_do_not_run_again():
    value = Item("a", 2.0)
    value.total = 99.0
    assert decode(encode(value), Item).total == 99.0


def test_attributes_beside_fields_come_back():
    assert decode(encode(Derived(3)), Derived).cached == {"x": 3}


def test_private_attributes_and_set_fields_come_back():
    back = decode(encode(secretive()), Secretive)
    assert back._seen == [7]
    given = Circle(kind=Color.RED)
    assert decode(encode(given), Circle).model_fields_set == {"kind"}


@pytest.mark.parametrize(
    ("value", "data"),
    [
        (Color.PAIR, (1, "a")),
        (Level.LOW, 1),
        (Point(1, (2,)), {"x": 1, "y": (2,)}),
        (Pair(1), (1, None)),
        (Shape(kind=Color.RED), {"kind": "red"}),
        (secretive(), {"a": 1}),
    ],
    ids=range(6),
)
@pytest.mark.parametrize("declared", [None, Any, dict, "Unknown", object], ids=str)
def test_undeclared_classes_are_their_data(value, data, declared, monkeypatch):
    """The first execution sees it too, with one warning for the type; reading alone does not warn."""
    monkeypatch.setattr(notices, "_noticed", set())
    with pytest.warns(UndeclaredTypeWarning, match="is recorded as its data"):
        text, back = record([value], declared)
    assert back == [data]
    assert type(back[0]) is type(data)
    assert record([value], declared)[1] == [data]
    monkeypatch.setattr(notices, "_noticed", set())
    assert decode(text, declared) == [data]


def test_a_class_missing_from_a_declaration_is_refused():
    """A subclass, a renamed class: a dict or a base where an instance is expected would be a silent loss."""
    for value, declared in [
        (Circle(kind=Color.RED), Shape),
        (Point(1), Item),
        (Tree(point=Point(1), shapes=[], anything=Derived(1)), Tree),
    ]:
        with pytest.raises(SerializationError, match="does not name"):
            record(value, declared)


def test_the_place_of_what_does_not_fit_is_named():
    value = {"rows": [Tree(point=Point(1), shapes=[], anything=[1, Derived(1)])]}
    with pytest.raises(SerializationError) as caught:
        record(value, dict[str, list[Tree]])
    assert caught.value.path == "$.rows[0].anything[1]"


def make(name: str, **annotations: Any) -> type:
    defaults = {key: item[1] for key, item in annotations.items() if isinstance(item, tuple)}
    types = {key: item[0] if isinstance(item, tuple) else item for key, item in annotations.items()}
    body = {"__annotations__": types, "__module__": __name__, "__qualname__": name, **defaults}
    return dataclass(type(name, (), body))


def make_model(name: str, **annotations: Any) -> type:
    defaults = {key: item[1] for key, item in annotations.items() if isinstance(item, tuple)}
    types = {key: item[0] if isinstance(item, tuple) else item for key, item in annotations.items()}
    body = {"__annotations__": types, "__module__": __name__, "__qualname__": name, **defaults}
    return type(name, (BaseModel,), body)


def make_pair(name: str, **annotations: Any) -> type:
    defaults = {key: item[1] for key, item in annotations.items() if isinstance(item, tuple)}
    return collections.namedtuple(name, annotations, defaults=defaults.values())


@pytest.mark.parametrize("kind", [make, make_model, make_pair], ids=["dataclass", "model", "namedtuple"])
def test_case_v4_old_records_meet_new_classes(kind):
    """New fields take their defaults; one without, a removed and a renamed one are refused by name."""
    text = encode(kind("State", a=int)(a=1))
    back = decode(text, kind("State", a=int, b=(int, 5)))
    assert (back.a, back.b) == (1, 5)
    with pytest.raises(SerializationError, match=r"'?b\b"):
        decode(text, kind("State", a=int, b=int))
    with pytest.raises(SerializationError, match="'a'"):
        decode(text, kind("State", b=(int, 5)))


@pytest.mark.parametrize("kind", [make, make_model, make_pair], ids=["dataclass", "model", "namedtuple"])
def test_a_renamed_class_is_taken_when_only_one_can_be_meant(kind):
    """Fields are checked all the same; and what is recorded now must be of the declared class itself."""
    text = encode({"rows": [kind("State", a=int)(a=1)]})
    renamed = kind("Renamed", a=int)
    (row,) = decode(text, dict[str, list[renamed]])["rows"]
    assert type(row) is renamed
    assert row.a == 1
    with pytest.raises(SerializationError, match="'a'"):
        decode(text, dict[str, list[kind("Renamed", b=(int, 5))]])
    with pytest.raises(SerializationError, match="State"):
        record(kind("State", a=int)(a=1), renamed)


def test_a_renamed_enum_is_taken_when_only_one_can_be_meant():
    renamed = enum.Enum("Hue", {"RED": Color.RED.value})
    assert decode(encode(Color.RED), renamed) is renamed.RED
    assert decode(encode(Color.RED), renamed | make("Other", a=int)) is renamed.RED, "the other is no enum"


def test_names_decide_between_several_classes():
    left, right = make("Left", a=int), make("Right", a=int)
    assert type(decode(encode(left(a=1)), left | right)) is left
    with pytest.raises(SerializationError, match="State"):
        decode(encode(make("State", a=int)(a=1)), left | right)


def test_two_classes_of_one_name_and_of_two_kinds_are_told_apart():
    plain, model = make("Same", a=int), make_model("Same", a=int)
    for cls in (plain, model):
        assert type(record(cls(a=1), plain | model)[1]) is cls


def test_where_a_class_is_defined_is_not_recorded():
    """A class that moves into a function, or out of one, is the same class."""

    @dataclass
    class Inner:
        a: int

    class Hue(enum.Enum):
        RED = 1

    assert "locals" in Inner.__qualname__
    text, back = record([Inner(1), Hue.RED], list[Inner | Hue])
    assert back == [Inner(1), Hue.RED]
    assert "locals" not in text


def test_a_model_whose_field_changed_its_type_is_refused():
    text = encode(make_model("State", a=str)(a="x"))
    with pytest.raises(SerializationError):
        decode(text, make_model("State", a=int))
    convertible = encode(make_model("State", a=str)(a="1"))
    with pytest.raises(SerializationError, match="changes field 'a'"):
        decode(convertible, make_model("State", a=int))


class Shouting(BaseModel):
    word: str

    @field_validator("word")
    @classmethod
    def louder(cls, value: str) -> str:
        return value + "!"


def test_a_model_that_validation_changes_is_refused_when_recorded():
    with pytest.raises(SerializationError, match="changes field 'word'"):
        record([Shouting(word="hey")], list[Shouting])


def test_enum_members_that_are_gone_are_refused():
    class Color(enum.Enum):
        BLUE = "blue"

        @classmethod
        def _missing_(cls, value: object) -> "Color":
            return cls.BLUE

    Color.__qualname__ = "Color"
    with pytest.raises(SerializationError, match="no member"):
        decode(encode(globals()["Color"].RED), Color)


def test_two_classes_of_one_name_are_refused():
    one, two = make("Same", a=int), make("Same", a=int)
    with pytest.raises(SerializationError, match="two classes"):
        record(one(a=1), one | two)


def test_what_an_instance_holds_must_be_recordable():
    held = secretive()
    held._seen.append(object())  # type: ignore[arg-type]
    with pytest.raises(SerializationError) as caught:
        encode({"m": held})
    assert caught.value.path == "$.m._seen[1]"
    derived = Derived(1)
    derived.cached = object()  # type: ignore[assignment]
    with pytest.raises(SerializationError, match=r"\$\.cached"):
        encode(derived)


def test_a_dataclass_that_is_also_a_container_is_refused():
    @dataclass
    class Odd(dict):
        a: int = 1

    with pytest.raises(SerializationError, match="Odd"):
        encode(Odd())
