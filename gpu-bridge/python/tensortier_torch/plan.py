"""What stays, what is fetched ahead and what is computed again, from the first step's packs, unpacks and calls.

A saved storage is idle from its pack to its first unpack. One that is idle for less time than `MARGIN` times the copy
out and back takes stays where it is: moving it would make the step wait and free its memory for no time worth having
(G10's rule). The others are copied out at once, and back `ahead` storages before the backward pass asks for them, in
the order in which it asked for them in the recorded step.

What a call made is computed again where that takes less time than the copies of all it made that would leave (DELTA's
rule for a choice of two, by the call). Its time counts what its input takes: nothing where autograd saves the input
anyway; where it is itself the result of such a call, that call's time or the input's own copies, whichever is less.

A step whose packs differ from the recorded one (another batch size, another branch) is not planned: from the first
difference on everything is copied out and fetched on demand, and that step is recorded for the next. A plan never
decides whether something may be computed again (`recompute` does), only whether it should.
"""
import time

MARGIN = 2.5


class Made:
    """A call: its function's name, its input's bytes (0: too small to matter) and what is known of it, its seconds."""

    def __init__(self, name, size, source):
        self.name, self.size, self.source = name, size, source
        self.seconds = float("inf")


class Record:
    """Packs, unpacks and calls of one step. A pack has the number of its order, a size, and two times."""

    def __init__(self):
        self.sizes = []
        self.packed = []
        self.unpacked = []
        self.order = []
        # Whether nothing of the storage was packed before, and the number of the call that made it.
        self.first = []
        self.maker = []
        self.calls = []

    def pack(self, size, now=None, first=True, maker=None):
        """Notes a pack; gives its number."""
        self.sizes.append(size)
        self.packed.append(time.perf_counter() if now is None else now)
        self.unpacked.append(None)
        self.first.append(first)
        self.maker.append(maker)
        return len(self.sizes) - 1

    def unpack(self, number, now=None):
        """Notes the first unpack of a pack."""
        if self.unpacked[number] is None:
            self.unpacked[number] = time.perf_counter() if now is None else now
            self.order.append(number)

    def call(self, name, size, source):
        """Notes a call; gives its number. `source.number` and `source.maker` tell of its input, now or later."""
        self.calls.append(Made(name, size, source))
        return len(self.calls) - 1

    def called(self, number, seconds):
        """Notes what a call took."""
        self.calls[number].seconds = seconds


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
        # Calls to be made again: name, size of the input, and the number under which autograd saves the input.
        self.again = {}
        self._choose(record, 2 * seconds_per_byte)
        # Followers of each pack in the order of unpacks.
        self._place = {number: place for place, number in enumerate(record.order)}
        self._order = list(record.order)

    def _choose(self, record, both_ways):
        """Chooses calls in their order; `both_ways` is seconds a byte."""
        leaves = [0] * len(record.calls)
        for number, maker in enumerate(record.maker):
            if maker is not None and record.first[number] and not self.stays[number]:
                leaves[maker] += self.sizes[number]
        seconds, through = [], []
        for call, made in enumerate(record.calls):
            cost, before = made.seconds, None
            number, maker = (None, None) if made.size == 0 else (made.source.number, made.source.maker)
            saved = number is not None and (self.stays[number] or maker not in self.again)
            if made.size and not saved:
                copies = made.size * both_ways
                if maker is not None and (number is not None or seconds[maker] < copies):
                    cost, before = cost + seconds[maker], maker
                else:
                    cost += copies
            seconds.append(cost)
            through.append(before)
            if leaves[call] and cost < leaves[call] * both_ways:
                while call is not None and call not in self.again:
                    made = record.calls[call]
                    source = made.source.number if made.size else None
                    self.again[call] = (made.name, made.size, source)
                    call = through[call]

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
