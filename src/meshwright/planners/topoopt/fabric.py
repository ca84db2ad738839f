"""A network as the flow simulation sees it: links, one route for every pair of servers, rings for every all-reduce group."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from meshwright.base.errors import InputError
from meshwright.planners.topoopt.rings import DRAWN_RATIO, Flow, Ring, along, by_member, drawn_rings, over_paths
from meshwright.planners.topoopt.routing.shortest import hops, routes
from meshwright.solvers.graph.min_max_split import even_out

if TYPE_CHECKING:
    from meshwright._kernels.topoopt.step_tasks import RoutedLinks

__all__ = ["Fabric", "Flow"]

MOST_STEPS = 6

LONGER_HOPS = 2
"""How many links more than the first route of a pair another may have."""

LARGEST_PROGRAMME = 1_000_000
"""Routes times links of the largest linear programme for point-to-point traffic."""


class Fabric:
    """Links between servers and switches, with routes; flows of groups are made when first asked for.

    Parameters
    ----------
    name : str
        ``"topoopt"``, ``"fat-tree"``, ...
    n_servers : int
        Nodes ``0 .. n_servers - 1``; switches follow.
    count : mapping of (int, int) to float
        Directed links and how many lie side by side: they act as one that much faster.
    bytes_per_second : float
        Of one link, one direction.
    latency_seconds : float
        Of every link.
    forwards : bool
        Whether servers pass on traffic of others.
    paths : mapping of int to tuple, or None
        Published ring paths: for a group size, jumps that lead from a member to the next. Other sizes, and all where it is
        None, have rings of our own.
    cycles : sequence of tuple of int
        Rings laid in the topology, as servers in order; groups inside one may use it.
    demand_bytes : ndarray or None, shape (n_servers, n_servers), float64
        From row to column: routes are chosen for it. None for the same between all.
    asked : callable
        Whether to give up choosing routes, which takes seconds in networks of hundreds of servers.

    Raises
    ------
    GivenUp
        When that was asked.
    InputError
        When a server cannot reach another.
    """

    def __init__(  # noqa: PLR0913  what it is made of, what for, and until when
        self, name: str, n_servers: int, count: Mapping[tuple[int, int], float], bytes_per_second: float,
        latency_seconds: float, *, forwards: bool = True, paths: Mapping[int, tuple[tuple[int, ...], ...]] | None = None,
        cycles: Sequence[tuple[int, ...]] = (), demand_bytes: NDArray[np.float64] | None = None,
        asked: Callable[[], bool] = lambda: False,
    ) -> None:  # fmt: skip
        self.name, self.n_servers, self.forwards = name, n_servers, forwards
        self.bytes_per_second, self.latency_seconds = bytes_per_second, latency_seconds
        self.paths, self.cycles = paths, tuple(cycles)
        ends = sorted(count)
        self.link_of = {pair: i for i, pair in enumerate(ends)}
        self.source = np.array([a for a, _ in ends], dtype=np.int64)
        self.target = np.array([b for _, b in ends], dtype=np.int64)
        self.count = np.array([count[pair] for pair in ends], dtype=np.float64)
        self.n_nodes = max(n_servers, int(max(self.source.max(initial=0), self.target.max(initial=0))) + 1)
        self.seconds_per_byte = 1.0 / (self.count * bytes_per_second)
        self.hops = self._hops()
        self.groups: dict[tuple[int, ...], int] = {}
        self._flows: list[list[Flow]] = []
        self._network: RoutedLinks | None = None
        self.route(np.ones((n_servers, n_servers)) if demand_bytes is None else demand_bytes, asked=asked)

    def _hops(self) -> NDArray[np.int64]:
        """Return hops from every node (column) to every server (row)."""
        found = hops(self.source, self.target, self.n_servers, self.n_nodes, forwards=self.forwards)
        lost = np.argwhere(found[:, : self.n_servers] < 0)
        if len(lost):
            raise InputError(
                f"topology {self.name}: server {lost[0][1]} cannot reach server {lost[0][0]}; raise --degree or choose another "
                "topology"
            )
        return np.ascontiguousarray(found)

    def route(
        self, demand_bytes: NDArray[np.float64], n_passes: int = 2, n_ways: int = 1,
        asked: Callable[[], bool] = lambda: False,
    ) -> None:  # fmt: skip
        """Choose shortest routes for every pair so that a demand loads links evenly; larger demands choose first.

        `demand_bytes`, shape (n_servers, n_servers), float64: bytes from row to column.
        `n_passes`: how often every pair chooses.
        `n_ways`: routes of a pair at most: more than the first are shortest ways that share no link with those before.
        """
        n = self.n_servers
        pairs = np.flatnonzero(~np.eye(n, dtype=bool).ravel())
        amount = np.maximum(demand_bytes.ravel()[pairs], 1.0)
        sequence = np.lexsort((pairs, -amount))
        order = pairs[sequence]
        first = np.searchsorted(self.source, np.arange(self.n_nodes + 1)).astype(np.int64)
        links = routes(
            first, self.target, self.seconds_per_byte, self.hops, order, amount[sequence], n_passes,
            forwards=self.forwards, asked=asked,
        )  # fmt: skip
        n_found = np.ones(len(order), dtype=np.int64)
        ways = links[:, None, :]
        if n_ways > 1:
            from meshwright._kernels.topoopt import short_routes

            ways, n_found = short_routes.widen(
                first, self.source, self.target, self.hops, order, links, n_ways, LONGER_HOPS, self.forwards
            )
        most = int(n_found.max())
        self.pair_ways = np.ones(n * n, dtype=np.int64)
        self.pair_ways[order] = n_found
        table = np.full((n * n, most, ways.shape[2]), -1, dtype=ways.dtype)
        table[order] = ways[:, :most]
        self.pair_first = np.concatenate([[0], np.cumsum((table >= 0).sum(axis=2).ravel())]).astype(np.int64)
        self.pair_link = table[table >= 0].astype(np.int64)
        self.pair_share = np.full(n * n * most, -1.0)
        self.groups.clear()
        self._flows.clear()
        self._network = None

    def refitted(
        self, pair_bytes: NDArray[np.float64], group_bytes: Sequence[tuple[tuple[int, ...], float]], n_ways: int = 1
    ) -> Fabric:
        """Return the same wires with routes and rings chosen for a traffic; see `route` and `balance`."""
        made = copy.copy(self)
        made.groups, made._flows, made._network = {}, [], None
        made.route(pair_bytes, n_ways=n_ways)
        made.balance(pair_bytes, group_bytes)
        return made

    def spread(
        self, pair_bytes: NDArray[np.float64], group_bytes: Sequence[tuple[tuple[int, ...], float]], *, together: bool = True
    ) -> Fabric | None:
        """Return the same routes, with rings drawn over all links between members beside the known ones, and the best shares.

        `pair_bytes`, shape (n_servers, n_servers), float64: point-to-point traffic from row to column.
        `group_bytes`: bytes all-reduced by each group.
        `together`: whether all groups and transfers share the links at the same time; otherwise each group has them to
        itself.
        Returns: None where rings are fixed, nothing can be chosen, or the programme would be too large.

        Notes
        -----
        A multi-commodity flow on the routes that every pair has, as a linear programme with the shares of all rings in it.
        """
        most = self.most_ways
        pairs = np.flatnonzero((pair_bytes.ravel() > 0) & (self.pair_ways > 1)).tolist() if together else []
        n_ways = int(self.pair_ways[pairs].sum()) + sum(2 * DRAWN_RATIO * len(members) for members, _ in group_bytes)
        if self.paths is not None or n_ways == 0 or n_ways * len(self.source) > LARGEST_PROGRAMME:
            return None
        made = copy.copy(self)
        made.pair_share, made.groups, made._flows, made._network = self.pair_share.copy(), {}, [], None
        drawn = [drawn_rings(self.link_of, members) for members, _ in group_bytes]
        if not together:
            none = np.zeros_like(pair_bytes)
            flows: list[list[Flow]] = []
            for group, rings in zip(group_bytes, drawn, strict=True):
                made._balanced(none, [group], [], [], [rings])
                flows += made._flows
            made.groups, made._flows, made._network = {members: i for i, (members, _) in enumerate(group_bytes)}, flows, None
            return made
        busy, item, rest = [], [], pair_bytes.copy()
        for i, pair in enumerate(pairs):
            rest.ravel()[pair] = 0.0
            for way in range(int(self.pair_ways[pair])):
                links = list(self._route(pair * most + way))
                row = np.zeros(len(self.source))
                row[links] = self.seconds_per_byte[links] * pair_bytes.ravel()[pair]
                busy.append(row)
                item.append(i)
        shares, at = made._balanced(rest, group_bytes, busy, item, drawn), 0
        for pair in pairs:
            n = int(self.pair_ways[pair])
            made.pair_share[pair * most : pair * most + n] = np.cumsum(shares[at : at + n])
            made.pair_share[pair * most + n - 1] = 1.0
            at += n
        return made

    def lay(
        self, n_ways: NDArray[np.int64], first: NDArray[np.int64], links: NDArray[np.int64], shares: NDArray[np.float64]
    ) -> None:
        """Take routes as given, in place of those chosen.

        `n_ways`, shape (n_servers ** 2,): routes of every pair. `first`, `links`: links of every place for a route, as many
        places for each pair. `shares`: where the part of every route ends; -1 for equal parts.
        """
        self.pair_ways, self.pair_first, self.pair_link, self.pair_share = n_ways, first, links, shares
        self.groups.clear()
        self._flows.clear()
        self._network = None

    def lay_rings(self, members: tuple[int, ...], flows: list[Flow]) -> None:
        """Take the flows of one more all-reduce group as given."""
        self.groups[members] = len(self._flows)
        self._flows.append(flows)
        self._network = None

    @property
    def most_ways(self) -> int:
        """Places for routes that every pair has: the routes of the pair with most."""
        return (len(self.pair_first) - 1) // len(self.pair_ways)

    def pair(self, a: int, b: int) -> tuple[int, ...]:
        """Return the links of the first route from server `a` to `b`."""
        return self.ways(a, b)[0]

    def ways(self, a: int, b: int) -> list[tuple[int, ...]]:
        """Return the links of every route from server `a` to `b`."""
        pair, most = a * self.n_servers + b, self.most_ways
        return [self._route(pair * most + way) for way in range(int(self.pair_ways[pair]))]

    def way_shares(self, a: int, b: int) -> list[float]:
        """Return which part of a large transfer from server `a` to `b` goes over each of its routes."""
        pair, most = a * self.n_servers + b, self.most_ways
        n = int(self.pair_ways[pair])
        if self.pair_share[pair * most] < 0:
            return [1.0 / n] * n
        found: list[float] = np.diff(self.pair_share[pair * most : pair * most + n], prepend=0.0).tolist()
        return found

    def _route(self, at: int) -> tuple[int, ...]:
        return tuple(self.pair_link[self.pair_first[at] : self.pair_first[at + 1]].tolist())

    def group(self, members: tuple[int, ...]) -> int:
        """Return the number of an all-reduce group; its flows are made at the first call.

        `members`: servers, ascending, at least two.
        """
        found = self.groups.get(members)
        if found is None:
            published = (self.paths or {}).get(len(members), ())
            ends = {(member + sum(jumps)) % self.n_servers for member in members for jumps in published}
            is_stored = bool(published) and ends <= {*members}  # jumps of a group that is spread otherwise would leave this one
            flows = over_paths(self.link_of, self.n_servers, members, published) if is_stored else self._rings(members)
            found = self.groups[members] = len(self._flows)
            self._flows.append(flows)
            self._network = None
        return found

    def flows(self, members: tuple[int, ...]) -> list[Flow]:
        """Return the flows of an all-reduce group: one for each member and ring, in that order."""
        return self._flows[self.group(members)]

    def _rings(self, members: tuple[int, ...]) -> list[Flow]:
        """Return flows over the rings that together finish first, shares by linear programme."""
        rings = [ring for order in self._orders(members) for ring in order]
        shares = even_out(np.stack([self._busy(ring) for ring in rings]), np.zeros(len(rings), dtype=np.int64))
        return by_member(rings, shares.tolist())

    def _busy(self, ring: Ring) -> NDArray[np.float64]:
        """Return how long each link is busy if every member sends one byte round a ring."""
        busy = np.zeros(len(self.source))
        for _, links in ring:
            np.add.at(busy, list(links), self.seconds_per_byte[list(links)])
        return busy

    def balance(self, pair_bytes: NDArray[np.float64], group_bytes: Sequence[tuple[tuple[int, ...], float]]) -> None:
        """Choose the rings of all groups of a traffic together, so that the busiest link is as little busy as possible.

        `pair_bytes`, shape (n_servers, n_servers), float64: point-to-point traffic, on its routes.
        `group_bytes`: bytes all-reduced by each group.
        """
        if self.paths is None and group_bytes:
            self._balanced(pair_bytes, group_bytes, [], [], [[] for _ in group_bytes])

    def _balanced(
        self,
        pair_bytes: NDArray[np.float64],
        group_bytes: Sequence[tuple[tuple[int, ...], float]],
        busy: list[NDArray[np.float64]],
        item: list[int],
        more: Sequence[list[list[Ring]]],
    ) -> NDArray[np.float64]:
        """Choose the rings of all groups, of the usual ones and of `more`, beside other ways; return all shares.

        `busy` and `item` hold what the others load and grow by the rings.
        """
        rings: list[Ring] = []
        n_others, n_items = len(busy), max(item, default=-1) + 1
        for i, (members, n_bytes) in enumerate(group_bytes):
            for order in [*self._orders(members), *more[i]]:
                for ring in order:
                    rings.append(ring)
                    item.append(n_items + i)
                    busy.append(self._busy(ring) * (2.0 * (len(members) - 1) / len(members) * n_bytes))
        base = np.zeros(len(self.source))
        per_route = np.repeat(pair_bytes.ravel() / self.pair_ways, self.most_ways)
        np.add.at(base, self.pair_link, np.repeat(per_route, np.diff(self.pair_first)))
        items = np.array(item)
        shares = even_out(np.stack(busy), items, base * self.seconds_per_byte)
        self.groups.clear()
        self._flows.clear()
        self._network = None
        for i, (members, _) in enumerate(group_bytes):
            own = np.flatnonzero(items[n_others:] == n_items + i)
            self.groups[members] = i
            self._flows.append(by_member([rings[k] for k in own.tolist()], shares[n_others + own].tolist()))
        return shares

    def _orders(self, members: tuple[int, ...]) -> list[list[Ring]]:
        """Return candidate rings: along the cycles laid in the topology, and in steps over shortest routes."""
        inside = set(members)
        found = []
        for cycle in self.cycles:
            if inside <= set(cycle):
                found.append([along(self.link_of, way, inside) for way in (cycle, cycle[::-1])])
        size = len(members)
        steps = [k for k in range(1, size // 2 + 1) if math.gcd(k, size) == 1]
        if self.n_nodes > self.n_servers and not self.forwards:
            steps = steps[:1]
            for switch in range(self.n_servers, self.n_nodes):
                if all((member, switch) in self.link_of and (switch, member) in self.link_of for member in members):
                    following = zip(members, members[1:] + members[:1], strict=True)
                    found.append([[(a, (self.link_of[a, switch], self.link_of[switch, b])) for a, b in following]])
            if found:
                return found
        for step in steps[:MOST_STEPS]:
            pairs = [(members[i], members[(i + step) % size]) for i in range(size)]
            ring = [(a, self.pair(a, b)) for a, b in pairs]
            found.append([ring] if size == 2 else [ring, [(b, self.pair(b, a)) for a, b in pairs]])
        return found

    def network(self) -> RoutedLinks:
        """Return the arrays of the flow simulation, with the flows of every group asked for so far."""
        if self._network is None:
            from meshwright._kernels.topoopt.step_tasks import RoutedLinks

            flows = [flow for group in self._flows for flow in group]
            lengths = np.array([len(links) for links, _ in flows], dtype=np.int64)
            sizes = np.array([len(group) for group in self._flows], dtype=np.int64)
            members = [np.array(group, dtype=np.int64) for group in self.groups]
            self._network = RoutedLinks(
                self.seconds_per_byte,
                np.full(len(self.source), self.latency_seconds),
                self.pair_ways,
                self.pair_first,
                self.pair_link,
                np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64),
                np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
                np.array([link for links, _ in flows for link in links], dtype=np.int64),
                np.array([share for _, share in flows], dtype=np.float64),
                np.array([len(group) for group in members], dtype=np.int64),
                np.concatenate([np.zeros(0, dtype=np.int64), *members]),
            )
        return self._network

    def longest_route(self, places: NDArray[np.int64]) -> int:
        """Return the links of the longest of some routes, by their places in `pair_first`."""
        return int(np.diff(self.pair_first)[places].max(initial=0))

    def longest_flow(self, groups: Iterable[int]) -> int:
        """Return the links of the longest flow of some groups, by number."""
        return max((len(links) for group in groups for links, _ in self._flows[group]), default=0)

    def injection_bytes_per_second(self) -> float:
        """Return the most that the interfaces of any one server send, or receive, together."""
        ends = (np.bincount(end, self.count, self.n_nodes)[: self.n_servers] for end in (self.source, self.target))
        return max(float(links.max()) for links in ends) * self.bytes_per_second

    def mean_hops(self) -> float:
        """Return the mean number of links between different servers."""
        n = self.n_servers
        return float(self.hops[:, :n].sum() / max(n * (n - 1), 1))

    def wires(self) -> list[tuple[int, int]]:
        """Return the links once for both directions, smaller end first, repeated where several lie side by side;
        a part counts as one.
        """
        found = []
        for a, b, count in zip(self.source.tolist(), self.target.tolist(), self.count.tolist(), strict=True):
            if a < b:
                back = self.link_of.get((b, a))
                both = min(count, self.count[back]) if back is not None else 0
                found += [(a, b)] * math.ceil(max(both, count))
            elif (b, a) not in self.link_of:
                found += [(b, a)] * math.ceil(count)
        return found
