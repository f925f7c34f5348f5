"""Directed graphs with weighted edges."""

import heapq
from collections import deque


class CycleError(ValueError):
    """The graph has a cycle where none is allowed."""


class Graph:
    """A graph stored as a dictionary of neighbours."""

    def __init__(self):
        self.edges = {}

    def add_edge(self, source, target, weight=1):
        """Add an edge and, if needed, the nodes that it connects."""
        if weight < 0:
            raise ValueError("weights must not be negative")
        self.edges.setdefault(source, {})[target] = weight
        self.edges.setdefault(target, {})

    def shortest_path(self, start, goal):
        """Return the cost of the cheapest path from ``start`` to ``goal`` and the
        nodes on it. The cost is infinite if there is no path.
        """
        queue = [(0, start, [start])]
        visited = set()
        while queue:
            cost, node, path = heapq.heappop(queue)
            if node == goal:
                return cost, path
            if node in visited:
                continue
            visited.add(node)
            for neighbour, weight in self.edges[node].items():
                if neighbour not in visited:
                    heapq.heappush(queue, (cost + weight, neighbour, path + [neighbour]))
        return float("inf"), []

    def topological_order(self):
        """Return the nodes in an order in which every edge points forward."""
        incoming = {node: 0 for node in self.edges}
        for targets in self.edges.values():
            for target in targets:
                incoming[target] += 1
        ready = deque(node for node, count in incoming.items() if count == 0)
        order = []
        while ready:
            node = ready.popleft()
            order.append(node)
            for target in self.edges[node]:
                incoming[target] -= 1
                if incoming[target] == 0:
                    ready.append(target)
        if len(order) < len(self.edges):
            raise CycleError("the graph has a cycle")
        return order

    def reachable(self, start):
        """Return the set of nodes that can be reached from ``start``."""
        found = {start}
        stack = [start]
        while stack:
            for neighbour in self.edges[stack.pop()]:
                if neighbour not in found:
                    found.add(neighbour)
                    stack.append(neighbour)
        return found
