from dataclasses import replace

from fleet_states import chain, fleet, history_of, key, local, mixed, node, simple

from tui.client.state import Device, Fleet, Hardware, LinkState, Model, Work
from tui.fleet.map_facts import LinkFacts, map_facts


def test_nodes_stand_in_the_order_of_their_layers() -> None:
    facts = map_facts(fleet(chains=(chain([3, 1, 2]),), nodes=tuple(map(node, (1, 2, 3, 4)))))
    (one,) = facts.chains
    assert [each.name for each in one.nodes] == ["pc-3", "pc-1", "pc-2"]
    assert [each.layer_words for each in one.nodes] == ["0-9", "10-19", "20-29"]
    assert [each.name for each in facts.idle] == ["pc-4"]


def test_a_divided_layer_is_a_half() -> None:
    (one,) = map_facts(fleet(chains=(chain([1, 2]),), nodes=(node(1), node(2)))).chains
    assert replace(one.nodes[0], layers=(0, 14.5)).layer_words == "0-14½"


def test_states_in_words() -> None:
    facts = map_facts(mixed())
    words = {each.name: (each.kind, each.state) for group in facts.chains for each in group.nodes}
    words |= {each.name: (each.kind, each.state) for each in facts.idle}
    assert words == {
        "pc-1": ("serving", "serving"),
        "pc-2": ("working", "fetching 42 %"),
        "pc-3": ("working", "compiling"),
        key(9)[:8]: ("gone", "gone"),
        "pc-4": ("idle", "idle"),
        "pc-5": ("left out", "left out: no memory is left for a layer"),
    }


def test_who_is_gone_keeps_its_name_and_who_carries_nothing_says_why() -> None:
    state = mixed()
    carriers, left_out = {key(9): "laptop-9"}, {key(4): "would make it slower"}
    facts = map_facts(Fleet.model_validate(state.model_dump() | {"carriers": carriers, "left_out": left_out}))
    named = {each.name: each.state for group in (*facts.chains, facts) for each in getattr(group, "nodes", facts.idle)}
    assert named["laptop-9"] == "gone" and named["pc-4"] == "left out: would make it slower"


def test_work_beyond_its_total_is_all_of_it() -> None:
    facts = map_facts(fleet(chains=(), nodes=(node(1, work=Work(what="fetching", done=7, total=5)),)))
    assert facts.idle[0].progress == 1.0 and facts.idle[0].state == "fetching 100 %"


def test_links_are_known_from_either_end() -> None:
    three = node(3, links={key(1): LinkState(latency_ms=9, bytes_per_second=7e6)})
    facts = map_facts(fleet(chains=(chain([1, 3]),), nodes=(node(1), three)))
    assert facts.chains[0].links == (LinkFacts(9, 7e6), LinkFacts(9, 7e6))


def test_the_last_link_leads_to_the_head() -> None:
    facts = map_facts(fleet(chains=(chain([2, 1]),), nodes=(node(1), node(2))))
    there, back = facts.chains[0].links
    assert there.words == ("0.40 ms", "112 MB/s")
    assert back.words == ("same PC",)


def test_what_a_link_carries_is_of_its_sender_unless_that_has_several() -> None:
    state = fleet(chains=(chain([1, 2]),), nodes=(node(1), node(2)))
    history = history_of(state)
    history.link_bytes_per_second[key(1)].append(38_000.0)
    assert map_facts(state, history).chains[0].links[0].words[-1] == "▸38 kB/s"
    twice = fleet(chains=(chain([1, 2]), chain([1, 2])), nodes=(node(1), node(2)))
    assert map_facts(twice, history).chains[0].links[0].flow is None


def test_a_device_with_its_own_memory() -> None:
    hardware = Hardware(devices=(Device(name="GPU", memory=16 * 10**9),))
    facts = map_facts(fleet(chains=(chain([1]),), nodes=(node(1, hardware=hardware),)))
    assert facts.chains[0].nodes[0].memory_part == 5 / 16


def test_without_a_fleet_the_stages_of_this_pc() -> None:
    (one,) = map_facts(local()).chains
    assert [(each.name, each.key, each.kind) for each in one.nodes] == [
        ("stage 1", "", "serving"),
        ("stage 2", "", "serving"),
    ]
    assert all(link.words[0] == "same PC" for link in one.links)


def test_no_chain_says_why() -> None:
    model = Model(name="m", layers=1, context_length=1)
    assert map_facts(Fleet(model=model)).message == "no chain is at work yet"
    assert map_facts(Fleet(model=model, waits_for="pc-2 is measuring")).message == "pc-2 is measuring"
    assert map_facts(Fleet(model=model, problem="no memory\x1b[2J")).message == "no memory\ufffd[2J"


def test_the_title_of_a_chain() -> None:
    (one,) = map_facts(simple(3)).chains
    assert " · ".join(one.title) == "chain 1 · 20.0 tok/s · 2 running, 1 waiting · 2 in flight · round 4.5 ms · KV 40 %"
