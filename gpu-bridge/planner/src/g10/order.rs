//! The order in which G10 looks at intervals that are worth the same.
//!
//! G10 sorts its list of intervals before each choice and takes the first. Once no interval has a benefit any more, all
//! are equal to its comparison and the first is whatever the sort left there; the planner then goes on with that one.
//! To arrive at the same moves, the list is kept and sorted as the C++ standard library of GCC does it: quicksort with
//! the median of second, middle and last as pivot down to sixteen elements, heap sort where that goes too deep, and an
//! insertion sort over the whole.

/// Runs longer than this are partitioned; shorter ones are left to the insertion sort.
const SHORT: usize = 16;

/// Sorts `list` so that no element is `before` an earlier one, moving equal elements as GCC's `std::sort` does.
pub(super) fn sort_like_gcc<T: Copy>(list: &mut [T], before: &impl Fn(&T, &T) -> bool) {
    partition_all(list, before, 2 * list.len().max(1).ilog2());
    for i in 1..list.len() {
        let value = list[i];
        // Only the first run may insert at its very start without looking for a place.
        let mut to = if i < SHORT && before(&value, &list[0]) { 0 } else { i };
        if to == i {
            while to > 0 && before(&value, &list[to - 1]) {
                to -= 1;
            }
        }
        list.copy_within(to..i, to + 1);
        list[to] = value;
    }
}

fn partition_all<T: Copy>(mut list: &mut [T], before: &impl Fn(&T, &T) -> bool, mut depth: u32) {
    while list.len() > SHORT {
        if depth == 0 {
            heap_sort(list, before);
            return;
        }
        depth -= 1;
        let cut = partition(list, before);
        let (low, high) = list.split_at_mut(cut);
        partition_all(high, before, depth);
        list = low;
    }
}

fn partition<T: Copy>(list: &mut [T], before: &impl Fn(&T, &T) -> bool) -> usize {
    let (a, b, c) = (1, list.len() / 2, list.len() - 1);
    let less = |i: usize, j: usize| before(&list[i], &list[j]);
    let median = match (less(a, b), less(b, c), less(a, c)) {
        (true, true, _) | (false, false, false) => b,
        (true, false, true) | (false, true, false) => c,
        (true, false, false) | (false, _, true) => a,
    };
    list.swap(0, median);
    let pivot = list[0];
    let (mut low, mut high) = (1, list.len());
    loop {
        while before(&list[low], &pivot) {
            low += 1;
        }
        high -= 1;
        while before(&pivot, &list[high]) {
            high -= 1;
        }
        if low >= high {
            return low;
        }
        list.swap(low, high);
        low += 1;
    }
}

fn heap_sort<T: Copy>(list: &mut [T], before: &impl Fn(&T, &T) -> bool) {
    for top in (0..list.len() / 2).rev() {
        sift(list, top, list[top], before);
    }
    for end in (1..list.len()).rev() {
        let value = list[end];
        list[end] = list[0];
        sift(&mut list[..end], 0, value, before);
    }
}

/// Lets the hole at `top` sink to a leaf along the later children, then lets `value` rise from there.
fn sift<T: Copy>(heap: &mut [T], top: usize, value: T, before: &impl Fn(&T, &T) -> bool) {
    let mut hole = top;
    while 2 * hole + 1 < heap.len() {
        let (left, right) = (2 * hole + 1, 2 * hole + 2);
        let child = if right < heap.len() && !before(&heap[right], &heap[left]) { right } else { left };
        heap[hole] = heap[child];
        hole = child;
    }
    while hole > top && before(&heap[(hole - 1) / 2], &value) {
        heap[hole] = heap[(hole - 1) / 2];
        hole = (hole - 1) / 2;
    }
    heap[hole] = value;
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn sorts(mut list in prop::collection::vec(0u32..50, 0..400)) {
            let mut sorted = list.clone();
            sorted.sort();
            let mut heap = list.clone();
            sort_like_gcc(&mut list, &|a, b| a < b);
            heap_sort(&mut heap, &|a, b| a < b);
            prop_assert_eq!(&list, &sorted);
            prop_assert_eq!(&heap, &sorted);
        }
    }
}
