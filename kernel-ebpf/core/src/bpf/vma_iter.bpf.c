// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * The VMAs of one process, one record each. User space opens the iterator for the process's first thread where the
 * kernel can (6.1); on older kernels it runs over every task, and the filter here leaves the one.
 */
#include "vmlinux.h"
#include <bpf/bpf_helpers.h>

char LICENSE[] SEC("license") = "Dual MIT/GPL";

/* The process asked for; user space sets it before each read. */
int wanted_tgid = 0;

enum vma_kind {
	VMA_ANON = 0,
	VMA_SHMEM = 1,
	VMA_FILE = 2,
	VMA_HUGETLB = 3,
};

struct vma_record {
	__u64 start;
	__u64 end;
	__u64 flags;
	__u64 inode;
	/* The kernel's own encoding: major << 20 | minor. */
	__u32 dev;
	__u32 kind;
};

/* For the record's type information alone: the skeleton makes the Rust type from it. */
struct vma_record vma_record_type = {};

/* linux/mm.h, linux/magic.h */
#define VM_HUGETLB 0x00400000
#define TMPFS_MAGIC 0x01021994

SEC("iter/task_vma")
int vma_iter(struct bpf_iter__task_vma *ctx)
{
	struct task_struct *task = ctx->task;
	struct vm_area_struct *vma = ctx->vma;
	struct vma_record record = {};
	struct file *file;

	if (!task || !vma || task->tgid != wanted_tgid)
		return 0;
	record.start = vma->vm_start;
	record.end = vma->vm_end;
	record.flags = vma->vm_flags;
	file = vma->vm_file;
	if (file) {
		struct inode *inode = file->f_inode;
		struct super_block *sb = inode->i_sb;

		record.inode = inode->i_ino;
		record.dev = sb->s_dev;
		/* Shared anonymous memory and memfd are files of the kernel's own tmpfs. */
		record.kind = sb->s_magic == TMPFS_MAGIC ? VMA_SHMEM : VMA_FILE;
	}
	if (record.flags & VM_HUGETLB)
		record.kind = VMA_HUGETLB;
	/* What does not fit is given again with the next read. */
	bpf_seq_write(ctx->meta->seq, &record, sizeof(record));
	return 0;
}
