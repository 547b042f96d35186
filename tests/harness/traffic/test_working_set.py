"""How much KV is wanted at once."""

from hypothesis import given
from hypothesis import strategies as st

from harness.traffic.draw import Planned
from harness.traffic.segments import Fresh, Part, Session, Shared, Turn
from harness.traffic.working_set import working_set_tokens


def planned(*parts: Part, turns: int = 1, due_s: float | None = None, tenant: str = "") -> Planned:
    """A session whose first prompt is made of the parts; every turn adds 10 tokens and puts out 10."""
    prompt = sum(part.count for part in parts)
    out = [Turn(prompt, 10, parts)]
    for _ in range(turns - 1):
        prompt += 20
        out.append(Turn(prompt, 10, (Fresh(10),)))
    due_ns = None if due_s is None else round(due_s * 1e9)
    return Planned(tenant, Session(tuple(out)), due_ns, (0,) * turns)


def test_a_closed_loop_holds_as_many_sessions_as_it_has_places() -> None:
    window = [planned(Fresh(90))] * 10
    assert working_set_tokens(window, {"": 4}, 10.0) == 400
    assert working_set_tokens(window[:3], {"": 4}, 10.0) == 300


def test_a_place_is_free_when_its_session_ends() -> None:
    """Two places: the long session keeps one through all short ones."""
    window = [planned(Fresh(50), turns=4), *[planned(Fresh(90))] * 3, planned(Fresh(490))]
    assert working_set_tokens(window, {"": 2}, 10.0) == 120 + 500


def test_an_open_loops_sessions_live_as_long_as_their_requests() -> None:
    window = [planned(Fresh(90), due_s=at) for at in (0, 5, 10, 40)]
    assert working_set_tokens(window, {"": None}, 10.0) == 200
    assert working_set_tokens(window, {"": None}, 100.0) == 400


def test_what_is_shared_counts_once_while_anybody_needs_it() -> None:
    system, other = Shared("system", 100), Shared("other", 60)
    window = [planned(system, Fresh(30)), planned(system, other, Fresh(30)), planned(system, other, Fresh(30))]
    assert working_set_tokens(window, {"": 3}, 10.0) == 100 + 60 + 3 * 40
    assert working_set_tokens(window, {"": 1}, 10.0) == 100 + 60 + 40


def test_the_same_text_after_another_beginning_is_another_prefix() -> None:
    a, b, end = Shared("a", 100), Shared("b", 100), Shared("end", 50)
    assert working_set_tokens([planned(a, end), planned(b, end)], {"": 2}, 10.0) == 2 * (100 + 50 + 10)


def test_tenants_share_nothing() -> None:
    window = [planned(Shared("k", 100), tenant="a"), planned(Shared("k", 100), tenant="b", due_s=0)]
    assert working_set_tokens(window, {"a": 1, "b": None}, 10.0) == 220


@given(
    st.lists(
        st.builds(
            lambda keys, fresh, due: planned(*(Shared(k, 16) for k in keys), Fresh(fresh), due_s=due),
            st.lists(st.sampled_from("abc"), max_size=3),
            st.integers(1, 100),
            st.floats(0, 100),
        ),
        min_size=1,
        max_size=20,
    )
)
def test_it_lies_between_the_largest_session_and_all_of_them(window: list[Planned]) -> None:
    window.sort(key=lambda each: each.due_ns or 0)
    sizes = [each.session.final_tokens for each in window]
    assert max(sizes) <= working_set_tokens(window, {"": None}, 10.0) <= sum(sizes)
