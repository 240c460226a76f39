"""What stays and what is fetched ahead, from the order of packs and unpacks that the first step showed.

A saved storage is idle from its pack to its first unpack. One that is idle for less time than `MARGIN` times the copy
out and back takes stays where it is: moving it would make the step wait and free its memory for no time worth having
(G10's rule). The others are copied out at once, and back `ahead` storages before the backward pass asks for them, in
the order in which it asked for them in the recorded step.

A step whose packs differ from the recorded one (another batch size, another branch) is not planned: from the first
difference on everything is copied out and fetched on demand, and that step is recorded for the next.
"""
import time

MARGIN = 2.5


class Record:
    """Packs and unpacks of one step. A pack has the number of its order, a size, and two times."""

    def __init__(self):
        self.sizes = []
        self.packed = []
        self.unpacked = []
        self.order = []

    def pack(self, size, now=None):
        """Notes a pack; gives its number."""
        self.sizes.append(size)
        self.packed.append(time.perf_counter() if now is None else now)
        self.unpacked.append(None)
        return len(self.sizes) - 1

    def unpack(self, number, now=None):
        """Notes the first unpack of a pack."""
        if self.unpacked[number] is None:
            self.unpacked[number] = time.perf_counter() if now is None else now
            self.order.append(number)


class Plan:
    """Decisions for a step that repeats a recorded one."""

    def __init__(self, record, seconds_per_byte):
        self.sizes = list(record.sizes)
        self.stays = [False] * len(self.sizes)
        for number, size in enumerate(self.sizes):
            back = record.unpacked[number]
            if back is not None:
                both_ways = 2 * size * seconds_per_byte
                self.stays[number] = back - record.packed[number] < MARGIN * both_ways
        # Followers of each pack in the order of unpacks.
        self._place = {number: place for place, number in enumerate(record.order)}
        self._order = list(record.order)

    def fits(self, number, size):
        """Whether the step still repeats the recorded one."""
        return number < len(self.sizes) and self.sizes[number] == size

    def following(self, number, count):
        """The packs that are asked for after `number`, at most `count` of those that left."""
        place = self._place.get(number)
        if place is None:
            return []
        later = (n for n in self._order[place + 1:] if not self.stays[n])
        return [n for n, _ in zip(later, range(count))]
