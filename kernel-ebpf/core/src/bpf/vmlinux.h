/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * The kernel types that the programs here touch, and of these only the fields that they read. Written by hand and
 * pinned: offsets are relocated at load time from the running kernel's BTF (CO-RE), so order and size do not matter;
 * names do.
 */
#ifndef TENSORTIER_VMLINUX_H
#define TENSORTIER_VMLINUX_H

typedef unsigned char __u8;
typedef unsigned short __u16;
typedef unsigned int __u32;
typedef unsigned long long __u64;
typedef signed char __s8;
typedef short __s16;
typedef int __s32;
typedef long long __s64;
typedef __u16 __be16;
typedef __u32 __be32;
typedef __u64 __be64;
typedef __u32 __wsum;

/* bpf_helpers.h names it. */
enum bpf_map_type {
	BPF_MAP_TYPE_UNSPEC = 0,
};

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct seq_file;

struct super_block {
	__u32 s_dev;
	unsigned long s_magic;
};

struct inode {
	struct super_block *i_sb;
	unsigned long i_ino;
};

struct file {
	struct inode *f_inode;
};

struct mm_struct {
	void *pgd;
};

struct vm_area_struct {
	unsigned long vm_start;
	unsigned long vm_end;
	struct mm_struct *vm_mm;
	unsigned long vm_flags;
	struct file *vm_file;
};

struct task_struct {
	int tgid;
};

struct bpf_iter_meta {
	struct seq_file *seq;
	__u64 session_id;
	__u64 seq_num;
};

struct bpf_iter__task_vma {
	struct bpf_iter_meta *meta;
	struct task_struct *task;
	struct vm_area_struct *vma;
};

#pragma clang attribute pop

#endif
