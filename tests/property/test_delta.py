"""`apply(a, diff(a, b))` is b, with types and order, for any two states, and for chains of them."""

import json
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.core.delta import Delta, apply, diff

KEYS = st.sampled_from(["a", "b", "c", "$d"])
LEAVES = st.none() | st.booleans() | st.integers(0, 2) | st.sampled_from([0.0, -0.0, 1.0]) | st.text("ab", max_size=3)
TREES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=15,
)


@given(st.lists(TREES, min_size=2, max_size=5))
@settings(max_examples=400, deadline=None)
def test_a_chain_of_deltas_leads_to_each_state(states):
    texts = [json.dumps(state) for state in states]
    reached = states[0]
    for old, new in pairwise(states):
        delta = diff(old, new)
        stored = None if delta is None else Delta(json.loads(json.dumps(delta.operations)))
        assert (stored is None) == (json.dumps(old) == json.dumps(new))
        reached = apply(reached, stored)
        assert json.dumps(reached) == json.dumps(new)
    assert [json.dumps(state) for state in states] == texts
