// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * Which pages of a process have been accessed, block by block (2 MiB, one page table), read from the accessed bits of
 * its page tables. Nothing is changed: user space takes the bits away itself, waits, and looks. Blocks in which no page
 * was accessed, and huge pages, whose one bit is the whole block's, are left out.
 *
 * x86-64: four or five levels of tables with 512 entries each. The tables are read through the kernel's map of all
 * memory. The iterator holds the process's mmap lock, so mappings do not go away meanwhile; a table that the kernel
 * frees all the same is read as whatever is there then, which costs a wrong hint.
 */
#include "vmlinux.h"
#include <bpf/bpf_helpers.h>

char LICENSE[] SEC("license") = "Dual MIT/GPL";

#define BLOCK_SHIFT 21
#define ENTRIES 512
#define PRESENT 0x1
#define LEAF 0x80
#define ACCESSED_BIT 5
/* Bits of a table's address; from bit 47 on memory encryption has its own. */
#define ADDRESS 0x00007ffffffff000ULL

/* User space sets these before each read: the process, addresses, and whether it has five levels. */
int wanted_tgid = 0;
__u64 wanted_start = 0;
__u64 wanted_end = 0;
int five_levels = 0;

/* Where the variable of x86-64's kernel is that says where it maps all memory; 0 where there is none. */
__u64 offset_variable = 0;

struct block_record {
	/* Address / 2 MiB. */
	__u64 block;
	/* A bit a page, set where the page was accessed. */
	__u64 accessed[8];
};

/* For the record's type information alone: the skeleton makes the Rust type from it. */
struct block_record block_record_type = {};

/* The page table under way. One reader at a time. */
static __u64 table[ENTRIES];

struct walk {
	struct seq_file *seq;
	__u64 first;
	__u64 pgd;
	__u64 offset;
	int five_levels;
};

static long one_block(__u32 number, void *context)
{
	struct walk *walk = context;
	struct block_record record = {};
	__u64 address, entry = 0, at = walk->pgd, any = 0;
	struct seq_file *seq = walk->seq;

	if (!seq)
		return 1;
	record.block = walk->first + number;
	address = record.block << BLOCK_SHIFT;
#pragma clang loop unroll(full)
	for (int level = 0; level < 4; level++) {
		int shift = 48 - 9 * level;

		if (level == 0 && !walk->five_levels)
			continue;
		if (bpf_probe_read_kernel(&entry, sizeof(entry), (void *)(at + (address >> shift & (ENTRIES - 1)) * 8)))
			return 0;
		if (!(entry & PRESENT) || (level > 1 && entry & LEAF))
			return 0;
		at = walk->offset + (entry & ADDRESS);
	}
	if (bpf_probe_read_kernel(table, sizeof(table), (void *)at))
		return 0;
	/* Without loops: the kernel would check each turn against all before it. */
#pragma clang loop unroll(full)
	for (int word = 0; word < 8; word++) {
		__u64 bits = 0;

#pragma clang loop unroll(full)
		for (int bit = 0; bit < 64; bit++) {
			__u64 page = table[word * 64 + bit];
			__u64 set = page >> ACCESSED_BIT;

			/* Kept from becoming a jump, of which the kernel would check both ways, 512 times over. */
			asm volatile("" : "+r"(set));
			set &= page & PRESENT;
			asm volatile("" : "+r"(set));
			bits |= set << bit;
			/* One after the other: the stack does not hold what the compiler would load ahead. */
			asm volatile("" : "+r"(bits) : : "memory");
		}
		record.accessed[word] = bits;
		any |= bits;
	}
	if (any)
		bpf_seq_write(seq, &record, sizeof(record));
	return 0;
}

/*
 * Run once before the first read. The kernel finds a symbol in its own table; libbpf would read all of /proc/kallsyms for
 * it, which takes longer than everything else about loading. Needs 5.16.
 */
SEC("syscall")
int find_offset(void *ctx)
{
	static const char name[] = "page_offset_base";

	return bpf_kallsyms_lookup_name(name, sizeof(name), 0, &offset_variable);
}

SEC("iter/task_vma")
int accessed_pages(struct bpf_iter__task_vma *ctx)
{
	struct task_struct *task = ctx->task;
	struct vm_area_struct *vma = ctx->vma;
	struct walk walk = {};
	struct mm_struct *mm;
	__u64 start, end, count;

	if (!task || !vma || task->tgid != wanted_tgid)
		return 0;
	start = vma->vm_start > wanted_start ? vma->vm_start : wanted_start;
	end = vma->vm_end < wanted_end ? vma->vm_end : wanted_end;
	if (start >= end)
		return 0;
	mm = vma->vm_mm;
	if (bpf_probe_read_kernel(&walk.pgd, sizeof(walk.pgd), &mm->pgd))
		return 0;
	if (bpf_probe_read_kernel(&walk.offset, sizeof(walk.offset), (void *)offset_variable))
		return 0;
	walk.seq = ctx->meta->seq;
	walk.first = start >> BLOCK_SHIFT;
	walk.five_levels = five_levels;
	count = ((end - 1) >> BLOCK_SHIFT) - walk.first + 1;
	bpf_loop(count, one_block, &walk, 0);
	return 0;
}
